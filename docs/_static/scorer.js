// Sphinx's own, except that a heading that holds the question comes first.
var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
  score: (found) => found[4] + (found[6] === "title" ? 100 : 0),
};
