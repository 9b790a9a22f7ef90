'use strict';
// Numbers as text. What has no value is null in the document and an en dash on the page.

const kNone = '\u2013';

function isNumber(x) { return typeof x === 'number' && Number.isFinite(x); }

// Digits behind the point that show n significant digits of x.
function decimalsFor(x, n) {
  return x === 0 ? 0 : Math.max(0, n - 1 - Math.floor(Math.log10(Math.abs(x)) + 1e-9));
}

function isTiny(x) { return x !== 0 && Math.abs(x) < 1e-3; }

// 0.0632, 12.3, 4711, 3.59e-7.
function formatNumber(x, n = 3) {
  if (!isNumber(x)) return kNone;
  if (Number.isInteger(x) && Math.abs(x) < 1e15) return String(x);
  if (isTiny(x) || Math.abs(x) >= 1e6) return x.toExponential(n - 1);
  return x.toFixed(decimalsFor(x, n));
}

// Digits behind the point for x that is uncertain by `size`: two digits of the uncertainty, at
// least two and at most five of x.
function decimalsBeside(x, size) {
  const wanted = isNumber(size) && size > 0 ? decimalsFor(size, 2) : 0;
  if (x === 0) return Math.min(wanted, 4);
  return Math.min(Math.max(wanted, decimalsFor(x, 2)), decimalsFor(x, 5));
}

// "0.0632 ± 0.0084", "3.59e-7 ± 2.1e-8", "1.000 ± 7.2e-9".
function formatMean(m, scale = 1) {
  if (!m || !isNumber(m.value)) return kNone;
  const value = scale * m.value, error = isNumber(m.error) ? scale * m.error : null;
  if (error === null) return formatNumber(value);
  if (error === 0) return `${formatNumber(value)} ± 0`;
  if (isTiny(value)) return `${value.toExponential(2)} ± ${error.toExponential(1)}`;
  const digits = decimalsBeside(value, error);
  const visible = error >= 0.1 * 10 ** -digits;
  return `${value.toFixed(digits)} ± ${visible
    ? error.toFixed(Math.max(digits, decimalsFor(error, 2))) : error.toExponential(1)}`;
}

// "0.63 [0.52, 0.73]", the central 95 % of the bootstrap draws.
function formatInterval(i, scale = 1) {
  if (!i || !isNumber(i.value)) return kNone;
  const value = scale * i.value;
  if (!isNumber(i.low) || !isNumber(i.high)) return formatNumber(value);
  const low = scale * i.low, high = scale * i.high, half = (high - low) / 2;
  if (half === 0) return `${formatNumber(value)} [${formatNumber(low)}, ${formatNumber(high)}]`;
  const one = isTiny(value) ? x => (x === 0 ? '0' : x.toExponential(2))
    : x => x.toFixed(decimalsBeside(value, half));
  return `${one(value)} [${one(low)}, ${one(high)}]`;
}

function formatAny(x, scale = 1) {
  if (x !== null && typeof x === 'object') {
    return 'low' in x ? formatInterval(x, scale) : formatMean(x, scale);
  }
  return typeof x === 'number' ? formatNumber(scale * x) : x === null ? kNone : String(x);
}

function formatPercent(x) {
  const text = formatAny(x, 100);
  return text === kNone ? text : `${text} %`;
}

// 2.50, 2.781: bits per element.
function formatBits(x) { return isNumber(x) ? x.toFixed(2) : kNone; }

// Powers of ten on axes: 0.01, 1, 100, and 10⁻⁵ farther out.
function formatPower(x) {
  if (x >= 0.00099 && x < 10001) return String(Number(x.toPrecision(3)));
  const power = Math.round(Math.log10(x));
  if (Math.abs(x / 10 ** power - 1) > 1e-6) return x.toExponential(0);
  const digits = String(Math.abs(power)).replace(/./g, d => '⁰¹²³⁴⁵⁶⁷⁸⁹'[d]);
  return `10${power < 0 ? '⁻' : ''}${digits}`;
}

// "a", "a and b", "a, b and c".
function inWords(list) {
  return list.length < 2 ? list.join('')
    : `${list.slice(0, -1).join(', ')} and ${list[list.length - 1]}`;
}

// The value at a path such as "experiments.direction.right.kl"; undefined where there is none.
function at(root, path) {
  return path.split('.').reduce((x, key) => (x === undefined || x === null ? undefined : x[key]),
    root);
}

// An element with attributes and children; strings become text, never markup.
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter(c => c !== null && c !== undefined));
  return node;
}
