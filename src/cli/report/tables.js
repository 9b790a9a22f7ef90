// Tables. Every cell that shows a figure carries the path of that figure in the document.

const kPlain = {format: formatAny};
const kPercent = {format: formatPercent};
const kBits = {format: formatBits};
const kText = {format: x => (x === null || x === undefined ? kNone : String(x)), text: true};
const kYes = {format: x => (x ? 'yes' : 'no'), text: true};

// rows: [{path, strong}], the path of an object; columns: [[title, key, kind]], the key a path
// below it. A column without a key shows the row's own name.
function table(report, {title, columns, rows, folded = false}) {
  const head = el('tr', {}, columns.map(([name, , kind]) =>
    el('th', {scope: 'col', class: kind && kind.text ? 'text' : null}, name)));
  const body = rows.map(row => el('tr', {class: row.strong ? 'strong' : null},
    columns.map(([, key, kind = kPlain], i) => cell(report, row, key, kind, i === 0))));
  const node = el('table', {}, el('caption', {}, title), el('thead', {}, head),
    el('tbody', {}, body));
  const whole = el('div', {class: 'table'},
    el('div', {class: 'table-head'}, el('p', {'aria-hidden': 'true'}, title), copyButton(node)),
    el('div', {class: 'scroll', tabindex: '0', role: 'region', 'aria-label': title}, node));
  return folded
    ? el('details', {}, el('summary', {}, `${title} (${rows.length} rows)`), whole) : whole;
}

function cell(report, row, key, kind, isHead) {
  const attributes = isHead ? {scope: 'row'} : {};
  if (kind.text) attributes.class = 'text';
  let text = row.name;
  if (key !== null) {
    const path = key === '' ? row.path : `${row.path}.${key}`, value = at(report, path);
    if (value === undefined) return el(isHead ? 'th' : 'td', attributes, '');
    attributes['data-path'] = path;
    text = kind.format(value);
  }
  return el(isHead ? 'th' : 'td', attributes, text);
}

// Rows for each element of an array in the document.
function rowsOf(report, path, strong = () => false) {
  return (at(report, path) || []).map((row, i) => ({path: `${path}.${i}`, strong: strong(row)}));
}

function asTabs(node) {
  return [...node.querySelectorAll('tr')].map(
    row => [...row.children].map(c => c.textContent).join('\t')).join('\n');
}

// Pages opened from a file may have no clipboard; then the table is selected for the reader's own
// copy command.
function copyButton(node) {
  const button = el('button', {type: 'button', class: 'copy'}, 'Copy');
  button.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(asTabs(node));
      button.textContent = 'Copied';
    } catch {
      getSelection().selectAllChildren(node);
      button.textContent = 'Selected';
    }
    setTimeout(() => { button.textContent = 'Copy'; }, 2000);
  });
  return button;
}

const kScopes = [['overall', 'overall'], ['equal bits', 'equal_bits'],
  ['within a layer', 'within_layer'], ['layer, equal bits', 'layer_equal_bits'],
  ['within a head', 'within_head']];

function metricTable(report, path, title) {
  const rows = [...rowsOf(report, `${path}.spearman`), {path: `${path}.gain`, strong: true}];
  return el('div', {},
    table(report, {title, rows, columns: [['measure', 'metric', kText], ...kScopes]}),
    el('p', {class: 'quiet'}, 'By chance, |correlation| over all cells stays below ',
      el('span', {'data-path': `${path}.chance`}, formatNumber(at(report, `${path}.chance`), 2)),
      '.'));
}

const E = 'experiments';

function metricsTables(report) {
  const m = `${E}.metrics`;
  return [
    metricTable(report, `${m}.key_kl`, 'Keys: Spearman’s correlation with the attention KL'),
    metricTable(report, `${m}.values`,
      'Values: Spearman’s correlation with the error of the attention output'),
    metricTable(report, `${m}.key_output`,
      'Keys: Spearman’s correlation with the error of the attention output'),
    table(report, {title: 'Key codecs, means over KV heads', folded: true,
      rows: rowsOf(report, `${m}.key_codecs`),
      columns: [['codec', 'codec', kText], ['bits', 'bits'], ['KL, nats', 'kl'],
        ['Fisher, nats', 'fisher'], ['storage MSE', 'mse'], ['output error', 'output_error']]}),
    table(report, {title: 'Value codecs, means over KV heads', folded: true,
      rows: rowsOf(report, `${m}.value_codecs`),
      columns: [['codec', 'codec', kText], ['bits', 'bits'], ['output error', 'output_error'],
        ['A² error', 'a2_mse'], ['storage MSE', 'mse']]}),
  ];
}

function counterexampleTables(report) {
  const c = `${E}.counterexamples`;
  const side = (title, key) => [[title, `${key}.codec`, kText], ['MSE', `${key}.mse`],
    ['KL', `${key}.kl`], ['output error', `${key}.output_error`]];
  return [
    table(report, {title: 'Pairs of codecs at equal bits on the same head', columns: [
      ['ordered by', null, kText], ['pairs', 'n_pairs'], ['wrong way round', 'n_reversed'],
      ['share', 'share', kPercent], ['beyond 2 errors', 'n_significant'],
      ['share', 'significant_share', kPercent]],
    rows: [{name: 'storage MSE', path: `${c}.by_mse`}, {name: 'Fisher', path: `${c}.by_fisher`}]}),
    table(report, {title: 'The largest counterexamples', folded: true,
      rows: rowsOf(report, `${c}.shown`),
      columns: [['layer', 'layer'], ['head', 'head'], ['bits', 'bits'],
        ...side('lower MSE', 'stored_better'), ...side('less harm', 'read_better'),
        ['KL difference', 'kl_difference'], ['output difference', 'output_difference']]}),
  ];
}

function nullSpaceTables(report) {
  const n = `${E}.null_space`;
  return [
    table(report, {title: 'Dense attention: largest KL over heads and queries',
      rows: rowsOf(report, `${n}.dense`),
      columns: [['multiple of the mean added', 'multiple'], ['KL, nats', 'kl_max']]}),
    table(report, {title: 'Codecs under a shift of all keys', folded: true,
      rows: rowsOf(report, `${n}.rows`, r => r.multiple === 0),
      columns: [['codec', 'codec', kText], ['multiple added', 'multiple'], ['KL, nats', 'kl'],
        ['KL / KL at 0', 'kl_ratio'], ['storage MSE', 'mse']]}),
  ];
}

function deployabilityTables(report) {
  const d = `${E}.deployability`;
  const rows = (at(report, `${d}.rows`) || []).flatMap((row, i) => row.bases.map((basis, j) => (
    {path: `${d}.rows.${i}.bases.${j}`, rank: String(row.rank)})));
  for (const row of rows) row.name = row.rank;
  return [
    table(report, {
      title: 'How much of the oracle’s gain over random directions the query basis reaches',
      rows: rowsOf(report, `${d}.rows`), columns: [['rank', 'rank'], ['bits', 'bits'],
        ['share of the gain in ln KL', 'oracle_gain_reached']]}),
    table(report, {title: 'Each basis at each rank', folded: true, rows, columns: [['rank', null],
      ['basis', 'basis', kText], ['KL, nats', 'kl'], ['KL / KL without', 'kl_ratio'],
      ['query basis does less harm', 'query_wins', kPercent]]}),
    el('p', {class: 'quiet'}, `Without a side code, ${at(report, `${d}.base`)} has a KL of `,
      el('span', {'data-path': `${d}.base_kl`}, formatMean(at(report, `${d}.base_kl`))), ' nats.'),
  ];
}

function directionTables(report) {
  const d = `${E}.direction`;
  return [table(report, {title: 'The correction of rank 4', columns: [['correction', null, kText],
    ['codec', 'codec', kText], ['KL, nats', 'kl'], ['KL / KL without', 'kl_ratio'],
    ['Fisher, nats', 'fisher'], ['output error', 'output_error']],
  rows: [{name: 'added', path: `${d}.right`}, {name: 'left out', path: `${d}.none`},
    {name: 'subtracted', path: `${d}.wrong`}]}),
  el('p', {class: 'quiet'}, 'KV heads with added < left out < subtracted: ',
    el('span', {'data-path': `${d}.ordered`}, formatPercent(at(report, `${d}.ordered`))), '.')];
}

function policyTables(report) {
  const a = `${E}.a2_policy`;
  return [
    table(report, {title: 'Half a bit more for values', rows: rowsOf(report, `${a}.rows`,
      r => r.policy === 'paid'), columns: [['policy', 'policy', kText], ['bits', 'bits'],
      ['output error', 'output_error'], ['output error / base', 'output_ratio'],
      ['A² error', 'a2_error'], ['A² error / base', 'a2_ratio'], ['storage MSE', 'mse'],
      ['later attention captured', 'captured', kPercent]]}),
    table(report, {title: 'By attention paid against the others at its bits',
      rows: rowsOf(report, `${a}.paid_over`), columns: [['against', 'policy', kText],
        ['output error over its', 'output_error_ratio'],
        ['KV heads where lower', 'wins', kPercent]]}),
  ];
}

const kRegime = [['cases', 'n_cases'], ['share', 'share', kPercent],
  ['of the KL', 'damage_share', kPercent], ['KL, nats', 'kl'], ['Fisher, nats', 'fisher'],
  ['Fisher / KL', 'fisher_over_kl'], ['Spearman', 'spearman']];

function routeTables(report) {
  const r = `${E}.route_flips`;
  const layers = (at(report, `${r}.layers`) || []).map((layer, i) => (
    {path: `${r}.layers.${i}`, strong: layer.low_entropy_regime}));
  const parts = layers.flatMap(layer => ['all', 'low_entropy', 'flipped', 'low_entropy_flipped']
    .map(part => ({path: `${layer.path}.${part}`,
      name: String(at(report, `${layer.path}.layer`))})));
  const shown = path => el('span', {'data-path': path}, formatAny(at(report, path)));
  const list = name => (at(report, `${r}.${name}`) || []).map((x, i) => shown(`${r}.${name}.${i}`));
  const codecs = list('codecs'), bounds = list('entropy_bounds');
  return [
    el('p', {class: 'quiet'}, 'A case is a query read through one of ',
      codecs.flatMap((c, i) => (i > 0 ? [', ', c] : [c])), '. Entropy is low below ', bounds[0],
      ' nats and high from ', bounds[1], ' on.'),
    table(report, {title: 'Cases by entropy and likeliest token',
      rows: [...rowsOf(report, `${r}.regimes`), {path: `${r}.all`, strong: true}],
      columns: [['entropy', 'entropy', kText], ['likeliest token', 'route', kText], ...kRegime]}),
    table(report, {title: 'Layers with the low-entropy regime', folded: true, rows: layers,
      columns: [
      ['layer', 'layer'], ['regime', 'low_entropy_regime', kYes], ['KL, nats', 'all.kl'],
      ['flips', 'flipped.share', kPercent], ['flips, of the KL', 'flipped.damage_share', kPercent],
      ['low-entropy flips, of the KL', 'low_entropy_flipped.damage_share', kPercent],
      ['Fisher / KL there', 'low_entropy_flipped.fisher_over_kl']]}),
    table(report, {title: 'Cases of each layer', folded: true, rows: parts, columns: [
      ['layer', null], ['entropy', 'entropy', kText], ['likeliest token', 'route', kText],
      ...kRegime]}),
  ];
}

// Everything below a path that holds figures, one row each: for what this page has no table of
// its own.
function leafRows(value, path) {
  if (value !== null && typeof value === 'object' && !('value' in value)) {
    return Object.entries(value).flatMap(([key, inner]) => leafRows(inner, `${path}.${key}`));
  }
  return [{path, name: path.split('.').slice(2).join(' ').replace(/_/g, ' ')}];
}

function plainTable(report, path, title) {
  return table(report, {title, folded: true, rows: leafRows(at(report, path), path),
    columns: [['figure', null, kText], ['value', '']]});
}

function modelTables(report) {
  const f = `${E}.full_model`, sets = [['full_kv', 'Keys and values packed'],
    ['keys_only', 'Keys packed, values dense'], ['llama_cpp', 'Caches of llama.cpp']];
  const rest = Object.keys(at(report, f)).filter(key => !sets.some(([name]) => name === key));
  return [
    ...sets.filter(([name]) => (at(report, `${f}.${name}`) || []).length > 0).map(
      ([name, title]) => table(report, {title, folded: name === 'keys_only',
        rows: rowsOf(report, `${f}.${name}`, r => r.role === 'base'),
        columns: [['keys/values', 'kv', kText], ['role', 'role', kText], ['base', 'bits'],
          ['rank', 'rank'], ['packed bits', 'packed_bits'], ['true bits', 'true_bits'],
          ['PPL', 'ppl'], ['PPL / dense', 'ppl_ratio'],
          ['excess PPL removed', 'excess_ppl_removed', kPercent], ['KLD', 'kld'],
          ['KLD removed', 'kld_removed', kPercent], ['top-1', 'top1', kPercent]]})),
    table(report, {title: 'The run of the whole model', folded: true,
      rows: rest.flatMap(key => leafRows(at(report, `${f}.${key}`), `${f}.${key}`)),
      columns: [['', null, kText], ['value', '']]}),
  ];
}

function setupTables(report) {
  const rows = [['Model', 'model'], ['Text', 'text'], ['KV heads', 'n_heads'],
    ['Queries', 'n_queries'], ['Tokens of a chunk', 'n_ctx'],
    ['Chunks for bases and means', 'n_calibration_chunks'],
    ['Chunks that are measured', 'n_chunks'],
    ['Latest tokens kept dense', 'window'], ['First tokens kept dense', 'sinks'],
    ['Bootstrap draws', 'n_replicates'], ['Seed', 'seed'],
    ['Layers', `${E}.metrics.n_layers`], ['Key cells', `${E}.metrics.n_key_cells`],
    ['Value cells', `${E}.metrics.n_value_cells`], ['Route cases', `${E}.route_flips.n_cases`],
    ['Margin of counterexamples', `${E}.counterexamples.margin`],
  ].map(([name, path]) => ({name, path})).filter(row => at(report, row.path) !== undefined);
  const floor = [['KL of dense keys against themselves, largest', 'noise_floor.identity_kl_max'],
    ['KL of keys rounded to 16-bit floats', 'noise_floor.f16_kl'],
    ['the same, largest head', 'noise_floor.f16_kl_max'],
    ['likeliest tokens that this changes, share', 'noise_floor.f16_flips']]
    .map(([name, path]) => ({name, path}));
  return [
    table(report, {title: 'What was measured', rows,
      columns: [['', null, kText], ['value', '', {...kPlain, text: true}]]}),
    table(report, {title: 'Noise floor', rows: floor,
      columns: [['', null, kText], ['value', '']]}),
  ];
}
