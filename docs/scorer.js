// The order of what the site's search finds. Sphinx scores a page by its best word alone; here each word counts, most
// where a heading has it. Pages for those who change the project come last.

const WEIGHTS = [
  [/^dev\//, 0.01],
  [/^(reference|words|index)$/, 0.8],
];

const has = (terms, word, page) => Object.hasOwn(terms, word) && [terms[word]].flat().includes(page);

var Scorer = {
  score: ([docname, title, anchor, descr, score, filename, kind]) => {
    const stemmer = new Stemmer();
    const query = new URLSearchParams(window.location.search).get("q") ?? "";
    const page = Search._index.docnames.indexOf(docname);
    const own = splitQuery(Search._index.titles[page].toLowerCase()).map((word) => stemmer.stemWord(word));
    let sum = kind === SearchResultKind.text ? 0 : score; // of a heading that has the query as it was typed
    for (const word of Search._parseQuery(query)[1]) {
      sum += (has(Search._index.titleterms, word, page) ? 15 : 5) + (own.includes(word) ? 5 : 0);
    }
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
