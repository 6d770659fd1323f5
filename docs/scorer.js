// The order of what the site's search finds. Sphinx scores a page by its best word alone; here each word counts, most
// where a heading has it, and then how much of the query one heading says: the result leads there. Pages of the inside
// come last.

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
  score: (result) => {
    const { alltitles, docnames, titles, titleterms } = Search._index;
    const page = docnames.indexOf(result[0]);
    const query = new URLSearchParams(window.location.search).get("q") ?? "";
    const typed = stemmed(query);
    const said = (text) => typed.filter((word) => stemmed(text).includes(word)).length;
    const own = stemmed(titles[page]);
    const isText = result[6] === SearchResultKind.text;
    const words = [...Search._parseQuery(query)[1]]; // without "it", "and" and the like
    let sum = isText ? 0 : result[4]; // of a heading that has the query as it was typed
    for (const word of words) {
      sum += (has(titleterms, word, page) ? 15 : 5) + (own.includes(one(word)) ? 5 : 0);
    }
    let most = said(titles[page]);
    for (const [heading, places] of Object.entries(alltitles)) {
      const place = places.find(([at, id]) => at === page && id !== null);
      if (place && said(heading) > most && words.some((word) => stemmed(heading).includes(one(word)))) {
        most = said(heading);
        if (isText) [result[1], result[2]] = [`${titles[page]} > ${heading}`, `#${place[1]}`];
      }
    }
    sum += (12 * most) / typed.length;
    return sum * (WEIGHTS.find(([pattern]) => pattern.test(result[0]))?.[1] ?? 1);
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
