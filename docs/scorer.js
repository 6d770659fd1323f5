// The order of what the site's search finds. Sphinx scores a page by its best word alone; here each word counts, most
// where a heading has it, and then how much of the query one heading says. Pages of the inside come last.

const WEIGHTS = [
  [/^dev\//, 0.01],
  [/^(reference|words|index)$/, 0.8],
];

const one = (word) => word.replace(/s$/, ""); // GPUs, gpu

const stemmed = (text) => {
  const stemmer = new Stemmer();
  return splitQuery(text.toLowerCase()).map((word) => one(stemmer.stemWord(word)));
};

const has = (terms, word, page) =>
  [word, `${word}s`].some((form) => Object.hasOwn(terms, form) && [terms[form]].flat().includes(page));

var Scorer = {
  score: ([docname, title, anchor, descr, score, filename, kind]) => {
    const { alltitles, docnames, titles, titleterms } = Search._index;
    const page = docnames.indexOf(docname);
    const query = new URLSearchParams(window.location.search).get("q") ?? "";
    const typed = stemmed(query);
    const own = stemmed(titles[page]);
    let sum = kind === SearchResultKind.text ? 0 : score; // of a heading that has the query as it was typed
    for (const word of Search._parseQuery(query)[1]) {
      sum += (has(titleterms, word, page) ? 15 : 5) + (own.includes(one(word)) ? 5 : 0);
    }
    const headings = Object.keys(alltitles).filter((heading) => alltitles[heading].some(([at]) => at === page));
    const said = headings.map((heading) => typed.filter((word) => stemmed(heading).includes(word)).length);
    sum += (9 * Math.max(0, ...said)) / typed.length;
    return sum * (WEIGHTS.find(([pattern]) => pattern.test(docname))?.[1] ?? 1);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
