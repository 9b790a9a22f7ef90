// The charts of each experiment, from the document.

const kMetricNames = {mse: 'storage MSE', relative_mse: 'relative MSE', score_error: 'score error',
  fisher: 'Fisher', a2_mse: 'A² error'};
const kMetricStyles = {mse: 1, relative_mse: 4, score_error: 3, fisher: 0, a2_mse: 0};

// Kinds of codecs, as the scatter charts colour them.
const kKeyKinds = [
  ['per channel (kivi)', name => /^kivi\d$/.test(name)],
  ['per token (token)', name => /^token\dh?c?$/.test(name)],
  ['side code, query basis', name => /\+hq\d+x\d+$/.test(name)],
  ['side code, key or random basis', name => /\+hq.*@/.test(name)],
  ['fitted (nib)', name => /^nib/.test(name)],
  ['other', () => true],
];
const kValueKinds = [
  ['per channel (kivi)', name => /^kivi\d$/.test(name)],
  ['per token (token)', name => /^token/.test(name)],
  ['fitted (nib)', name => /^nib/.test(name)],
  ['other', () => true],
];

function kindOf(kinds, name) { return kinds.findIndex(([, test]) => test(name)); }

// Series for a scatter: cells grouped by the kind of their codec.
function cellSeries(cells, codecs, kinds, metric, harm) {
  const series = kinds.map(([name], style) => (
    {name, style, xs: [], ys: [], names: [], codec: []}));
  for (let i = 0; i < cells.codec.length; ++i) {
    const codec = codecs[cells.codec[i]].codec, s = series[kindOf(kinds, codec)];
    s.xs.push(cells[metric][i]);
    s.ys.push(cells[harm][i]);
    s.codec.push(cells.codec[i]);
    s.names.push(`layer ${cells.layer[i]}, head ${cells.head[i]}, ${codec}`);
  }
  return series.filter(s => s.xs.length > 0);
}

// A selector for bits; figures that listen are drawn again.
function bitsControl(codecs, listeners) {
  const rates = [...new Set(codecs.map(c => formatBits(c.bits)))].sort((a, b) => a - b);
  const select = el('select', {'aria-label': 'Show codecs of'},
    el('option', {value: ''}, 'all bit rates'),
    rates.map(r => el('option', {value: r}, `${r} bits an element`)));
  select.addEventListener('change', () => listeners.forEach(f => f.redraw()));
  const node = el('p', {class: 'control'}, el('label', {}, 'Show codecs of ', select));
  return {node, keeps: codec => !select.value || formatBits(codecs[codec].bits) === select.value};
}

function scatterPair(cells, codecs, kinds, harm, yTitle, panels) {
  if (!cells) return [];
  const listeners = [];
  const control = bitsControl(codecs, listeners);
  const yDomain = extentOf(cells[harm], true);
  const figures = panels.map(p => scatterChart({title: p.title, caption: p.caption,
    series: cellSeries(cells, codecs, kinds, p.metric, harm), xTitle: p.xTitle, yTitle,
    xDomain: extentOf(cells[p.metric], true), yDomain, diagonal: p.diagonal,
    filter: (s, i) => control.keeps(s.codec[i])}));
  listeners.push(...figures);
  return [control.node, el('div', {class: 'figures'}, figures)];
}

function correlationChart(table, title, caption) {
  const groups = kScopes.map(([name, key]) => ({name, rows: table.spearman.map(row => (
    {name: kMetricNames[row.metric] || row.metric, style: kMetricStyles[row.metric] ?? 5,
      ...row[key]}))}));
  return intervalChart({title, caption, groups, zero: true,
    domain: [Math.min(0, ...groups.flatMap(g => g.rows.map(r => r.low ?? r.value ?? 0))), 1],
    xTitle: 'Spearman’s correlation with the harm'});
}

function metricsFigures(report) {
  const m = at(report, `${E}.metrics`);
  return [
    ...scatterPair(m.key_cells, m.key_codecs, kKeyKinds, 'kl', 'attention KL (nats)', [
      {metric: 'mse', title: 'Keys: storage error against harm', xTitle: 'storage MSE (key units²)',
        caption: 'Each dot is a query head read through one codec. If storage error were what ' +
          'matters, the dots would lie on one rising line; choose one bit rate to see what is ' +
          'left of it.'},
      {metric: 'fisher', title: 'Keys: Fisher variance against harm', diagonal: 'KL = Fisher',
        xTitle: 'Fisher variance (nats)',
        caption: 'The same dots by half the variance of the score error under attention. They ' +
          'expected on the dashed line while errors are small, and above it where attention is ' +
          'lost to another token.'}]),
    ...scatterPair(m.value_cells, m.value_codecs, kValueKinds, 'output_error',
      'output error (value units²)', [
        {metric: 'mse', title: 'Values: storage error against harm',
          xTitle: 'storage MSE (value units²)',
          caption: 'What an error in stored values does to the attention output. One line is ' +
            'expected only if all heads spread their attention alike.'},
        {metric: 'a2_mse', title: 'Values: A² error against harm', diagonal: 'output = A²',
          xTitle: 'A² error (value units²)',
          caption: 'Errors weighted with the square of the attention their token gets. The ' +
            'dashed line is expected when errors of different tokens are not correlated.'}]),
    el('div', {class: 'figures'},
      correlationChart(m.key_kl, 'Keys: how well each measure ranks the harm',
        'Rank correlation with the attention KL, with 95 % intervals: 1 is a perfect ranking, 0 ' +
        'none. Over all cells every measure looks good, since all of them know 2 bits from 4; at ' +
        'equal bits they part.'),
      correlationChart(m.values, 'Values: how well each measure ranks the harm',
        'Rank correlation with the error of the attention output. Within a head, where attention ' +
        'is the same for all codecs, all measures are expected to agree.')),
  ];
}

function counterexampleFigures(report) {
  const c = at(report, `${E}.counterexamples`);
  const pairs = c.shown.map(e => ({name: `layer ${e.layer}, head ${e.head}`,
    from: {x: e.stored_better.mse, y: e.stored_better.kl, name: e.stored_better.codec},
    to: {x: e.read_better.mse, y: e.read_better.kl, name: e.read_better.codec}}));
  const share = (name, r, style) => ({name, rows: [
    {name: 'wrong way round', style, ...errorEnds(r.share, 100)},
    {name: 'beyond 2 errors', style: style + 2,
      ...errorEnds(r.significant_share, 100)}]});
  const shares = intervalChart({title: 'How often the better-looking codec does more harm',
    caption: 'Share of pairs at equal bits, mean over KV heads with its standard error, in which ' +
      'codec with the lower measure has the higher KL and the higher output error. A measure of ' +
      'harm would have none.',
    groups: [share('by storage MSE', c.by_mse, 1), share('by Fisher', c.by_fisher, 1)],
    xTitle: 'share of pairs (%)'});
  const arrows = pairs.length === 0 ? null : arrowChart({pairs,
    title: 'The largest counterexamples',
    caption: 'Each line joins two codecs of equal bits on one head. A line that falls to the ' +
      'right goes to more storage error and less harm: all of these do.',
    xTitle: 'storage MSE (key units²)', yTitle: 'attention KL (nats)',
    fromName: 'stores better', toName: 'reads better'});
  return [el('div', {class: 'figures'}, arrows, shares)];
}

// A mean with its error as an interval of one error to each side.
function errorEnds({value, error}, scale = 1) {
  if (!isNumber(value)) return {value: null};
  return {value: scale * value, ...(isNumber(error)
    ? {low: scale * (value - error), high: scale * (value + error)} : {})};
}

function nullSpaceFigures(report) {
  const n = at(report, `${E}.null_space`);
  const codecs = [...new Set(n.rows.map(r => r.codec))];
  const series = codecs.map((codec, style) => ({name: codec, style,
    points: n.rows.filter(r => r.codec === codec).map(r => (
      {x: r.multiple, y: r.kl.value, error: r.kl.error}))}));
  return [el('div', {class: 'figures'}, lineChart({wide: true, series,
    title: 'Harm when all keys get the same vector added',
    caption: 'KL of coded attention when a multiple of the head’s mean key is added to every ' +
      'which dense attention cannot notice; −1 takes the mean away. Flat lines are expected of ' +
      'that follow a channel (kivi) or subtract the mean (c), rising ones of grids that all ' +
      'channels of a token share. Bars: standard errors over KV heads.',
    xTitle: 'multiple of the mean key added', yTitle: 'attention KL (nats)',
    xTicks: [...new Set(n.rows.map(r => r.multiple))]}))];
}

function deployabilityFigures(report) {
  const d = at(report, `${E}.deployability`);
  const names = {query: 'query', oracle: 'oracle', key: 'key', random: 'random'};
  const series = (d.rows[0] ? d.rows[0].bases : []).map((b, i) => (
    {name: names[b.basis] || b.basis, style: [0, 2, 3, 1][i] ?? 4,
      points: d.rows.map(r => ({x: r.rank, y: r.bases[i].kl_ratio.value,
        error: r.bases[i].kl_ratio.error, name: `${formatBits(r.bits)} bits`}))}));
  const reached = [{name: 'query basis', style: 0, points: d.rows.map(r => (
    {x: r.rank, y: r.oracle_gain_reached.value,
      error: halfWidth(r.oracle_gain_reached), name: `${formatBits(r.bits)} bits`}))}];
  const ranks = d.rows.map(r => r.rank);
  return [el('div', {class: 'figures'},
    lineChart({series, title: 'Harm left by the rank of the correction',
      caption: `KL over that of ${d.base} alone (geometric mean over KV heads), for side codes ` +
        'of the same size along four kinds of directions. The query basis, made on other text, ' +
        'is expected close to the oracle, which is made on this very text; key and random ' +
        'directions above.',
      xTitle: 'rank of the side code', yTitle: `KL / KL of ${d.base}`, xLog: true, yLog: true,
      xTicks: ranks, reference: {value: 1, label: 'no correction'}}),
    lineChart({series: reached, title: 'What calibration on other text is worth',
      caption: 'Share of the oracle’s gain over random directions in ln KL that the query basis ' +
        'reaches; 1 means that nothing is lost by calibrating on other text. Bars: half the 95 % ' +
        'interval.',
      xTitle: 'rank of the side code', yTitle: 'share of the oracle’s gain', xLog: true,
      yLog: false,
      xTicks: ranks, reference: {value: 1, label: 'oracle'}}))];
}

function halfWidth({low, high}) {
  return isNumber(low) && isNumber(high) ? (high - low) / 2 : null;
}

function directionFigures(report) {
  const d = at(report, `${E}.direction`);
  const rows = [['added', d.right, 0], ['left out', d.none, 5], ['subtracted', d.wrong, 1]];
  const group = (name, key) => ({name, rows: rows.map(([label, row, style]) => (
    {name: label, style, ...errorEnds(row[key])}))});
  return [el('div', {class: 'figures'},
    intervalChart({log: true, groups: [group('attention KL', 'kl'), group('Fisher', 'fisher')],
      title: 'Attention with the correction added, left out and subtracted',
      caption: 'The same correction with the right sign, none and the wrong sign, mean over KV ' +
        'heads with its standard error. If it is a correction, the three stand in this order.',
      xTitle: 'nats'}),
    intervalChart({log: true, groups: [group('output error', 'output_error')],
      title: 'The attention output with it added, left out and subtracted',
      caption: 'The same for the squared error of the attention output, values dense.',
      xTitle: 'output error (value units²)'}))];
}

const kPolicies = [['base', 'without', 5], ['uniform', 'all tokens alike', 4],
  ['random', 'random tokens', 3], ['paid', 'by attention paid', 0], ['oracle', 'oracle', 2]];

function policyFigures(report) {
  const rows = at(report, `${E}.a2_policy.rows`);
  const known = kPolicies.map(([policy, name, style]) => (
    {name, style, row: rows.find(r => r.policy === policy)})).filter(p => p.row);
  const group = (name, key) => ({name, rows: known.map(p => ({name: p.name, style: p.style,
    ...p.row[key]}))});
  return [el('div', {class: 'figures'},
    intervalChart({log: true, groups: [group('output error', 'output_ratio'),
      group('A² error', 'a2_ratio')],
    title: 'What half a bit more for values is worth',
    caption: 'Error over that of kivi2 alone, geometric mean over KV heads with its 95 % ' +
      'interval. Attention paid earns its place if its mark is left of all tokens alike and of ' +
      'random tokens; the oracle bounds what any choice by attention can do.',
    xTitle: 'error / error of kivi2'}),
    intervalChart({groups: known.filter(p => isNumber(p.row.captured.value)).map(p => (
      {name: p.name, rows: [{name: 'captured', style: p.style, ...scaled(p.row.captured, 100)}]})),
    title: 'How much later attention the chosen tokens get',
    caption: 'Of the squared attention paid to coded tokens, the share of the quarter that has ' +
      'two bits more. A quarter is expected of random tokens.',
    xTitle: 'share (%)'}))];
}

function routeFigures(report) {
  const r = at(report, `${E}.route_flips`), layers = r.layers.map(l => l.layer);
  const parts = [['flips', 'flipped', 'share'], ['flips, of the KL', 'flipped', 'damage_share'],
    ['low entropy', 'low_entropy', 'share'],
    ['low, of the KL', 'low_entropy', 'damage_share'],
    ['low & flip, of KL', 'low_entropy_flipped', 'damage_share']];
  const cells = r.layers.flatMap(l => parts.map(([row, part, figure]) => (
    {column: l.layer, row, value: l[part][figure].value, name: `layer ${l.layer}, ${row}`})));
  const shares = r.regimes.map(g => ({name: `${g.entropy} entropy, ${g.route}`, rows: [
    {name: 'of the cases', style: 5, ...scaled(g.share, 100)},
    {name: 'of the KL', style: 1, ...scaled(g.damage_share, 100)}]}));
  const ratios = r.regimes.map(g => ({name: `${g.entropy} entropy, ${g.route}`, rows: [
    {name: 'Fisher / KL', style: 0, ...g.fisher_over_kl}]}));
  return [el('div', {class: 'figures'},
    intervalChart({title: 'Where the harm is', groups: shares, xTitle: 'share (%)',
      caption: 'Queries by the entropy of their attention and by whether their likeliest token ' +
        'changed. Where the orange mark is right of the grey one, few cases carry much of the ' +
        'harm. Intervals: 95 %.'}),
    intervalChart({title: 'Where the second order is enough', groups: ratios,
      domain: [0, Math.max(1.05, ...r.regimes.map(g => g.fisher_over_kl.high ?? 0))],
      xTitle: 'Fisher variance / KL',
      caption: 'Near 1 the Fisher variance is all there is; far below 1 it misses most of the ' +
        'harm, as is expected where confident attention flips.'}),
    heatMap({title: 'Route flips by layer', columns: layers, rows: parts.map(p => p[0]), cells,
      columnTitle: 'layer', rowTitle: '', valueTitle: 'share', format: formatPercent,
      tickFormat: d3.format('.0%'), domain: [0, Math.max(...cells.map(c => c.value ?? 0))],
      caption: 'Share of cases and of the summed KL in each layer: queries whose likeliest token ' +
        'changed, queries of low entropy, and those that are both. Dark rows mean that the ' +
        'layer’s harm lies elsewhere.'}))];
}

function scaled(i, scale) {
  const times = x => (isNumber(x) ? scale * x : null);
  return {value: times(i.value), low: times(i.low), high: times(i.high)};
}

// Maps over layers and query heads, from the cells.
function headFigures(report) {
  const m = at(report, `${E}.metrics`), cells = m.key_cells, d = at(report, `${E}.direction`);
  const grid = name => {
    const codec = m.key_codecs.findIndex(c => c.codec === name), out = new Map();
    for (let i = 0; i < cells.codec.length; ++i) {
      if (cells.codec[i] === codec) out.set(`${cells.layer[i]}/${cells.head[i]}`, cells.kl[i]);
    }
    return out;
  };
  const base = d.none.codec, corrected = d.right.codec;
  const before = grid(base), after = grid(corrected);
  const sorted = list => [...new Set(list)].sort((a, b) => a - b);
  const map = (values, more) => heatMap({columns: sorted(cells.layer), rows: sorted(cells.head),
    columnTitle: 'layer', rowTitle: 'query head', cells: [...values].map(([key, value]) => {
      const [column, row] = key.split('/').map(Number);
      return {column, row, value, name: `layer ${column}, query head ${row}`};
    }), ...more});
  const ratios = new Map([...before].filter(([key, kl]) => kl > 0 && after.has(key))
    .map(([key, kl]) => [key, after.get(key) / kl]));
  return [el('div', {class: 'figures'},
    map(before, {title: `Harm by head: ${base}`, log: true, valueTitle: 'attention KL (nats)',
      caption: 'Mean KL of each query head. Bright heads lose most at the same bits; were all ' +
        'heads alike, the map would be of one colour. Empty: not sampled.'}),
    map(ratios, {title: `Harm left by head: ${corrected}`, valueTitle: `KL / KL of ${base}`,
      log: true,
      caption: 'What the correction along query directions leaves of it. Below 1 everywhere is ' +
        'expected; the darkest heads gain most.'}))];
}

// --- Experiment 6: caches through the whole model, by their true bits.

const kRoles = [
  ['base', 'kivi', 1], ['side_code', 'kivi with correction', 0], ['nib', 'nib', 2],
  ['wide_base', 'same bits on the base', 4], ['random_basis', 'random basis', 3],
  ['wrong_sign', 'wrong sign', 6], ['paid_tokens', 'values by attention', 6],
  ['random_tokens', 'random tokens', 3], ['reference', 'llama.cpp', 5],
];

// Rows of one table of the whole model, and llama.cpp's caches beside them where these are like.
function modelSeries(rows, metric) {
  return kRoles.map(([role, name, style]) => ({name, style, points: rows
    .filter(r => r.role === role && isNumber(r.true_bits) && isNumber(r[metric].value))
    .map(r => ({x: r.true_bits, y: r[metric].value, error: r[metric].error, name: r.kv,
      part: role === 'side_code' ? r.bits : role}))
    .sort((a, b) => a.x - b.x)})).filter(s => s.points.length > 0);
}

function modelChart(rows, {metric, floor, ...more}) {
  const floorRow = rows.find(r => r.kv === 'f16');
  return lineChart({...more, xLog: true, series: modelSeries(rows, metric),
    xTitle: 'true bits an element', reference: floor && floorRow
      ? {value: floorRow[metric].value, label: 'noise floor (f16)'} : undefined});
}

function modelFigures(report) {
  const full = at(report, `${E}.full_model`), floor = full.llama_cpp || [];
  const note = 'True bits count every byte the cache holds, its dense window included. Nearer to ' +
    'lower left is better; bars are standard errors. Corrections of rank 1, 2, 4 and 8 on one ' +
    'base are joined, and expected to fall faster than the bases do.';
  const both = [...(full.full_kv || []), ...floor];
  const keys = [...(full.keys_only || []), ...floor.filter(r => r.kv === 'f16')];
  return el('div', {class: 'figures'},
    modelChart(both, {metric: 'kld', floor: true, yTitle: 'KLD of the next token (nats)',
      title: 'Keys and values packed: divergence against bits',
      caption: `How far the distribution of the next token moves from the dense cache’s. ${note}`}),
    modelChart(both, {metric: 'ppl_ratio', yTitle: 'PPL / PPL dense',
      title: 'Keys and values packed: perplexity against bits',
      caption: 'Perplexity over that of the dense cache, on the same bits; 1 is no loss.'}),
    modelChart(keys, {metric: 'kld', floor: true, yTitle: 'KLD of the next token (nats)',
      title: 'Keys alone: divergence against bits',
      caption: 'Values dense. The controls spend a correction’s bits otherwise (on the base, ' +
        'along random directions) or with the wrong sign, and are expected above it.'}));
}
