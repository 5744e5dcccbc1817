// Where as many words match, pages for users come before those with the details.
var Scorer = {
  score: ([page, , , , score]) =>
    score + (/^(tools|tutorials)\/|^(durations|quickstart|running|profiling)$/.test(page) ? 3 :
             /^(performance|caches|limitations|tools_comparison|compiled_models)/.test(page) ? -3 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
