// Puts the page together from the document.

const kSections = [
  {id: 'metrics', title: '1. Which error measure predicts the harm?',
    intro: 'Every query head is read through many codecs. For each we know how well the keys or ' +
      'values are stored, how large the error is that attention sees, and the harm done: the ' +
      'Kullback-Leibler divergence (KL) of the attention weights for keys, the squared error of ' +
      'the attention output for values.', figures: metricsFigures, tables: metricsTables},
  {id: 'counterexamples', title: '2. Less storage error, more harm',
    intro: 'Pairs of codecs that spend the same bits on the same head: is the one that stores ' +
      'the keys better also the better one to read?', figures: counterexampleFigures,
    tables: counterexampleTables},
  {id: 'null_space', title: '3. A shift that nobody sees',
    intro: 'Softmax does not notice when every score moves by the same amount, so a vector added ' +
      'to all keys costs nothing. A codec may pay for it all the same.', figures: nullSpaceFigures,
    tables: nullSpaceTables},
  {id: 'deployability', title: '4. Which directions deserve the bits?',
    intro: 'A side code spends a few bits on the key’s error along a few directions. They may ' +
      'come from queries or keys of other text, from the text itself (the oracle), or from chance.',
    figures: deployabilityFigures, tables: deployabilityTables},
  {id: 'direction', title: '5. Right sign, wrong sign',
    intro: 'A control: the same correction, applied backwards, must hurt as clearly as it helps.',
    figures: directionFigures, tables: directionTables},
  {id: 'full_model', title: '6. The whole model', intro: 'What the next token loses when the ' +
      'whole model reads a packed cache, beside the cache types of llama.cpp.',
    figures: modelFigures, tables: modelTables},
  {id: 'a2_policy', title: '7. Bits for the tokens that are read',
    intro: 'A value’s error reaches the output times the attention its token gets. Half a bit ' +
      'more for each value can go to all tokens alike, or be two bits more for a quarter of them: ' +
      'random ones, those that were attended to most until their block is coded, or those that ' +
      'will be (the oracle).', figures: policyFigures, tables: policyTables},
  {id: 'route_flips', title: '8. Route flips',
    intro: 'Fisher variance is the second-order term of the KL. The two part where an error is ' +
      'large enough to send attention to another token.',
    figures: routeFigures, tables: routeTables},
];

// Room for a part of the page. When its figures are not what the part expects the reader is told so
// in its place, the others still stand, and the error goes on to the console.
function attempt(make) {
  try {
    return make();
  } catch (error) {
    setTimeout(() => { throw error; });
    return el('p', {class: 'failure'}, `This part could not be drawn: ${error.message}`);
  }
}

function experimentSection(report, {id, title, intro, figures, tables}, claim) {
  return el('section', {id, 'aria-labelledby': `${id}-title`},
    el('h2', {id: `${id}-title`}, title), claim ? badge(claim.verdict) : null,
    el('p', {}, intro), claim ? el('p', {}, claim.text) : null,
    attempt(() => figures(report)), attempt(() => tables(report)));
}

function unknownSections(report) {
  return Object.keys(at(report, E)).filter(id => !kSections.some(s => s.id === id)).map(id =>
    el('section', {id}, el('h2', {}, id.replace(/_/g, ' ')),
      attempt(() => plainTable(report, `${E}.${id}`, `Figures of ${id}`))));
}

function build(report) {
  const claims = attempt(() => claimsOf(report));
  const known = Array.isArray(claims) ? claims : [];
  document.title = `HeadQ diagnosis of ${report.model}`;
  document.getElementById('masthead').append(
    el('p', {class: 'eyebrow'}, 'HeadQ diagnosis'), el('h1', {}, report.model),
    el('p', {class: 'quiet'}, `on ${report.text}: ${report.n_queries} queries of ` +
      `${report.n_heads} KV heads, ${report.n_chunks} chunks of ${report.n_ctx} tokens`));
  const sections = kSections.filter(s => at(report, `${E}.${s.id}`) !== undefined);
  const room = document.getElementById('report');
  room.append(
    ...(Array.isArray(claims) ? [attempt(() => summarySection(report, claims))] : [claims]),
    el('nav', {'aria-label': 'Sections'}, el('ul', {}, [...sections, {id: 'heads',
      title: 'Head by head'}, {id: 'setup', title: 'How it was measured'}].map(s =>
      el('li', {}, el('a', {href: `#${s.id}`}, s.title))))),
    ...sections.map(s => experimentSection(report, s, known.find(c => c.id === s.id))),
    el('section', {id: 'heads'}, el('h2', {}, 'Head by head'),
      el('p', {}, 'Harm is not spread evenly over a model. Each cell is one query head.'),
      attempt(() => headFigures(report))),
    ...unknownSections(report),
    el('section', {id: 'setup'}, el('h2', {}, 'How it was measured'),
      el('p', {}, 'Keys, values and queries are those of the model running with a dense cache, ' +
        'rotary embedding. Everything is computed from them in double precision, through the ' +
        'codecs of the cache itself. Figures near the noise floor mean nothing.'),
      setupTables(report)));
  drawFigures(room);
}

function drawFigures(room) {
  const figures = [...room.querySelectorAll('figure')];
  for (const f of figures) {
    const failed = attempt(() => { f.redraw(); return null; });
    if (failed) f.append(failed);
  }
  new ResizeObserver(() => figures.forEach(f => f.resize())).observe(room);
}

// Paper has no folds.
function unfoldForPrint() {
  let folded = [];
  addEventListener('beforeprint', () => {
    folded = [...document.querySelectorAll('main details:not([open])')];
    for (const node of folded) node.open = true;
  });
  addEventListener('afterprint', () => { for (const node of folded) node.open = false; });
}

attempt(() => {
  build(JSON.parse(document.getElementById('document').textContent));
  return null;
});
unfoldForPrint();
