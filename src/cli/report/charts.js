// Kinds of charts. Each draws into an SVG of a given width and is drawn again when the width
// changes; colours are classes (c1 to c7) whose variables the style sheet sets for each theme.

const kShapes = ['symbolCircle', 'symbolSquare', 'symbolTriangle', 'symbolDiamond', 'symbolStar',
  'symbolCross', 'symbolWye'];
const kDashes = ['', '7 3', '2 3', '9 3 2 3', '12 4', '1 4', '5 5'];
const kNarrow = 520;  // pixels; below this there is no room for labels beside lines
let nFigures = 0;

function symbolPath(style, size = 56) {
  return d3.symbol().type(d3[kShapes[style % 7]]).size(size)();
}

function colourClass(style) { return `c${1 + style % 7}`; }

// A swatch for legends: a line with its dashes and mark, a mark alone (dot), or the round points of
// a scatter chart.
function swatch(style, kind) {
  const svg = d3.select(document.createElementNS('http://www.w3.org/2000/svg', 'svg'))
    .attr('width', kind === 'line' ? 30 : 14).attr('height', 14).attr('aria-hidden', 'true')
    .attr('class', colourClass(style));
  if (kind === 'line') {
    svg.append('path').attr('class', 'series').attr('d', 'M0,7H30')
      .attr('stroke-dasharray', kDashes[style % 7]);
  }
  svg.append('path').attr('class', 'mark').attr('d', symbolPath(kind === 'point' ? 0 : style))
    .attr('transform', `translate(${kind === 'line' ? 15 : 7},7)`);
  return svg.node();
}

function legend(series, kind) {
  return el('ul', {class: 'legend'},
    series.map(s => el('li', {}, swatch(s.style, kind), s.name)));
}

// A figure with title, plot and caption. draw(svg, width, plot) draws into a selection and returns
// the height; legendFor(width) gives the legend's element or null.
function figure({title, caption, wide = false, control = null, legendFor = () => null, draw,
  isEmpty = false}) {
  const id = `figure-${++nFigures}`;
  const plot = el('div', {class: 'plot'}), legendRoom = el('div');
  const node = el('figure', {class: wide ? 'wide' : null, id, 'aria-labelledby': `${id}-title`},
    el('h3', {id: `${id}-title`}, title), control, legendRoom, plot,
    el('figcaption', {id: `${id}-caption`}, caption));
  let drawn = 0;
  const redraw = () => {
    const width = Math.max(260, Math.floor(plot.clientWidth));
    drawn = width;
    plot.replaceChildren();
    if (isEmpty) {
      plot.append(el('p', {class: 'quiet'}, 'Nothing to draw: these figures have no value here.'));
      return;
    }
    const svg = d3.select(plot).append('svg').attr('role', 'img').attr('width', width)
      .attr('aria-labelledby', `${id}-title ${id}-caption`);
    const height = draw(svg, width, plot);
    svg.attr('height', height).attr('viewBox', `0 0 ${width} ${height}`);
    const list = legendFor(width);
    legendRoom.replaceChildren(...(list ? [list] : []));
  };
  node.redraw = redraw;
  node.resize = () => { if (Math.floor(plot.clientWidth) !== drawn) redraw(); };
  return node;
}

// --- Axes

function extentOf(values, log) {
  const fit = values.filter(v => isNumber(v) && (!log || v > 0));
  return fit.length > 0 ? d3.extent(fit) : log ? [0.1, 1] : [0, 1];
}

// Whole decades would waste room: ends are at 1, 2 or 5 times a power of ten, or close around what
// spans less than half a decade.
const kShort = 3;

function niceLog([low, high]) {
  if (high > low && high / low < kShort) return [low * 0.98, high * 1.02];
  const step = (x, up) => {
    const power = 10 ** Math.floor(Math.log10(x) + 1e-9);
    const steps = [1, 2, 5, 10].map(s => s * power);
    return up ? steps.find(s => s >= x * 0.999999)
      : steps.reverse().find(s => s <= x * 1.000001);
  };
  const ends = [step(low, false), step(high, true)];
  return ends[0] === ends[1] ? [ends[0] / 2, ends[1] * 2] : ends;
}

function logTicks(scale, room) {
  const [low, high] = scale.domain();
  if (high / low < 1.1 * kShort) return d3.ticks(low, high, Math.min(5, Math.max(2, room)));
  const decades = Math.log10(high / low);
  const steps = decades < 1.2 ? [1, 2, 5] : decades < 2.5 ? [1, 3] : [1];
  let ticks = [];
  for (let p = Math.floor(Math.log10(low)) - 1; p <= Math.ceil(Math.log10(high)); ++p) {
    for (const s of steps) ticks.push(Number((s * 10 ** p).toPrecision(3)));
  }
  ticks = ticks.filter(t => t >= low * 0.9999 && t <= high * 1.0001);
  const every = Math.ceil(ticks.length / Math.max(2, room));
  return ticks.filter((t, i) => i % every === 0);
}

// x and y axes with a light grid; the y title stands above its axis, where it can be read upright.
function axes(svg, {x, y, xTitle, yTitle, box, xLog, yLog, xTicks, xFormat, yFormat}) {
  const ticksX = xTicks || (xLog ? logTicks(x, (box.right - box.left) / 48) : x.ticks(6));
  const ticksY = yLog ? logTicks(y, (box.bottom - box.top) / 26) : y.ticks(5);
  const grid = svg.append('g').attr('aria-hidden', 'true');
  for (const t of ticksY) {
    grid.append('line').attr('class', 'grid').attr('x1', box.left).attr('x2', box.right)
      .attr('y1', y(t)).attr('y2', y(t));
  }
  for (const t of ticksX) {
    grid.append('line').attr('class', 'grid').attr('x1', x(t)).attr('x2', x(t))
      .attr('y1', box.top).attr('y2', box.bottom);
  }
  svg.append('g').attr('class', 'axis').attr('transform', `translate(0,${box.bottom})`)
    .call(d3.axisBottom(x).tickValues(ticksX).tickSizeOuter(0)
      .tickFormat(xFormat || (xLog ? formatPower : d3.format('~g'))));
  svg.append('g').attr('class', 'axis').attr('transform', `translate(${box.left},0)`)
    .call(d3.axisLeft(y).tickValues(ticksY).tickSizeOuter(0)
      .tickFormat(yFormat || (yLog ? formatPower : d3.format('~g'))));
  svg.append('text').attr('class', 'title').attr('x', 0).attr('y', 12).text(yTitle);
  svg.append('text').attr('class', 'title').attr('x', box.right).attr('y', box.bottom + 36)
    .attr('text-anchor', 'end').text(xTitle);
}

function scaleFor(values, log, range) {
  const [low, high] = extentOf(values, log);
  return log ? d3.scaleLog().domain(niceLog([low, high])).range(range)
    : d3.scaleLinear().domain([Math.min(0, low), high || 1]).nice(5).range(range);
}

// A horizontal line at a level worth comparing with, when it is in sight.
function referenceLine(svg, y, box, {value, label}) {
  const [low, high] = y.domain();
  if (!isNumber(value) || value < low || value > high) return;
  svg.append('line').attr('class', 'reference').attr('x1', box.left).attr('x2', box.right)
    .attr('y1', y(value)).attr('y2', y(value));
  const below = y(value) - box.top < 18;
  svg.append('text').attr('class', 'reference-label').attr('x', box.left + 6)
    .attr('y', y(value) + (below ? 15 : -5)).text(label);
}

// --- Lines with error bars, labelled at their ends where there is room

// series: [{name, style, points: [{x, y, error, part}]}]; a line joins points of the same part.
function lineChart({title, caption, wide, series, xTitle, yTitle, xLog = false, yLog = true,
  xTicks, reference}) {
  const kept = series.map(s => ({...s, points: s.points.filter(
    p => isNumber(p.y) && (!yLog || p.y > 0) && (!xLog || p.x > 0))})).filter(
    s => s.points.length > 0);
  const draw = (svg, width) => {
    const labels = width >= kNarrow;
    const longest = d3.max(kept, s => s.name.length) || 0;
    const box = {left: 52, right: width - (labels ? 16 + 7.4 * longest : 14), top: 24,
      bottom: width < kNarrow ? 270 : 320};
    const all = kept.flatMap(s => s.points);
    const x = scaleFor(all.map(p => p.x), xLog, [box.left + 8, box.right - 8]);
    if (!xLog) x.domain(d3.extent(all, p => p.x));
    const y = scaleFor(all.flatMap(p => [p.y, ...ends(p)]).concat(
      reference ? [reference.value] : []), yLog, [box.bottom, box.top]);
    axes(svg, {x, y, xTitle, yTitle, box, xLog, yLog, xTicks});
    if (reference) referenceLine(svg, y, box, reference);
    for (const s of kept) drawLine(svg, s, x, y, xTitle, yTitle);
    if (labels) endLabels(svg, kept, y, box);
    return box.bottom + 44;
  };
  return figure({title, caption, wide, draw, isEmpty: kept.length === 0,
    legendFor: width => (width < kNarrow ? legend(kept, 'line') : null)});
}

// Ends of an error bar; none reach below a tenth of the value, which keeps them on a log axis.
function ends(p) {
  if (!isNumber(p.error)) return [p.y, p.y];
  return [p.y > 0 ? Math.max(p.y - p.error, p.y / 10) : p.y - p.error, p.y + p.error];
}

function drawLine(svg, s, x, y, xTitle, yTitle) {
  const g = svg.append('g').attr('class', colourClass(s.style)).attr('data-series', s.name);
  for (const part of new Set(s.points.map(p => p.part))) {
    g.append('path').attr('class', 'series').attr('stroke-dasharray', kDashes[s.style % 7])
      .attr('d', d3.line().x(p => x(p.x)).y(p => y(p.y))(s.points.filter(p => p.part === part)));
  }
  for (const p of s.points) {
    const [low, high] = ends(p);
    g.append('line').attr('class', 'error').attr('x1', x(p.x)).attr('x2', x(p.x))
      .attr('y1', y(low)).attr('y2', y(high));
    g.append('path').attr('class', 'mark').attr('d', symbolPath(s.style))
      .attr('transform', `translate(${x(p.x)},${y(p.y)})`)
      .append('title').text(`${s.name}${p.name ? `, ${p.name}` : ''}\n${xTitle}: ${
        formatNumber(p.x)}\n${yTitle}: ${formatMean({value: p.y, error: p.error})}`);
  }
}

// Names at the right ends, pushed apart where lines end close together.
function endLabels(svg, series, y, box) {
  const kStep = 15;
  const labels = series.map(s => ({s, at: y(s.points[s.points.length - 1].y)}))
    .sort((a, b) => a.at - b.at);
  for (let i = 1; i < labels.length; ++i) {
    labels[i].at = Math.max(labels[i].at, labels[i - 1].at + kStep);
  }
  let limit = box.bottom;
  for (let i = labels.length - 1; i >= 0; --i) {
    labels[i].at = Math.min(labels[i].at, limit);
    limit = labels[i].at - kStep;
  }
  for (const {s, at: place} of labels) {
    svg.append('text').attr('class', `label ${colourClass(s.style)}`).attr('x', box.right + 8)
      .attr('y', place + 4).text(s.name);
  }
}

// --- Scatter of many points

// series: [{name, style, xs, ys, names}] with arrays of equal length. All points of a series are
// one path of dots; the nearest one is named under the pointer.
function scatterChart({title, caption, series, xTitle, yTitle, xDomain, yDomain, diagonal, control,
  filter = () => true}) {
  const draw = (svg, width, plot) => {
    const box = {left: 52, right: width - 12, top: 24, bottom: 24 + Math.min(340, 0.8 * width)};
    const x = d3.scaleLog().domain(niceLog(xDomain)).range([box.left + 6, box.right - 6]);
    const y = d3.scaleLog().domain(niceLog(yDomain)).range([box.bottom - 6, box.top + 6]);
    axes(svg, {x, y, xTitle, yTitle, box, xLog: true, yLog: true});
    const near = [], nAll = d3.sum(series, s => s.xs.length);
    for (const s of series) {
      let path = '', n = 0;
      for (let i = 0; i < s.xs.length; ++i) {
        if (!(s.xs[i] > 0 && s.ys[i] > 0) || !filter(s, i)) continue;
        const px = x(s.xs[i]), py = y(s.ys[i]);
        path += `M${px.toFixed(1)},${py.toFixed(1)}h0`;
        near.push({px, py, s, i});
        ++n;
      }
      svg.append('path').attr('class', `marks ${colourClass(s.style)}`).attr('d', path)
        .attr('data-series', s.name).attr('data-points', n)
        .attr('stroke-width', nAll > 1500 ? 3 : 4.5).attr('opacity', 0.5);
    }
    if (diagonal) drawDiagonal(svg, x, y, diagonal);
    nameNearest(svg, plot, near, width, xTitle, yTitle);
    return box.bottom + 44;
  };
  return figure({title, caption, control, draw, legendFor: () => legend(series, 'point')});
}

// Where both axes have the same value.
function drawDiagonal(svg, x, y, label) {
  const low = Math.max(x.domain()[0], y.domain()[0]), high = Math.min(x.domain()[1], y.domain()[1]);
  if (!(low < high)) return;
  svg.append('path').attr('class', 'reference')
    .attr('d', `M${x(low)},${y(low)}L${x(high)},${y(high)}`);
  svg.append('text').attr('class', 'reference-label').attr('x', x(high) - 8).attr('y', y(high) + 16)
    .attr('text-anchor', 'end').text(label);
}

function nameNearest(svg, plot, points, width, xTitle, yTitle) {
  const kReach = 18;
  const tip = el('div', {class: 'tip', hidden: ''});
  plot.append(tip);
  const hide = () => tip.setAttribute('hidden', '');
  svg.on('pointerleave', hide);
  svg.node().addEventListener('pointermove', event => {
    const frame = svg.node().getBoundingClientRect(), zoom = width / frame.width;
    const px = (event.clientX - frame.left) * zoom, py = (event.clientY - frame.top) * zoom;
    let best = null, least = kReach * kReach;
    for (const p of points) {
      const distance = (p.px - px) ** 2 + (p.py - py) ** 2;
      if (distance < least) [best, least] = [p, distance];
    }
    if (!best) return hide();
    tip.textContent = `${best.s.names[best.i]}\n${xTitle}: ${formatNumber(best.s.xs[best.i])}\n${
      yTitle}: ${formatNumber(best.s.ys[best.i])}`;
    tip.removeAttribute('hidden');
    tip.style.left = `${Math.min(best.px + 10, Math.max(0, width - 200))}px`;
    tip.style.top = `${best.py + 12}px`;
  });
}

// --- Figures with their intervals, one row each

// groups: [{name, rows: [{name, style, value, low, high}]}]
function intervalChart({title, caption, groups, xTitle, domain, zero = false, log = false, wide}) {
  const kept = groups.map(g => ({...g, rows: g.rows.filter(r => isNumber(r.value))}))
    .filter(g => g.rows.length > 0);
  const rows = kept.flatMap(g => g.rows);
  const names = [...new Map(rows.map(r => [r.name, r])).values()];
  const draw = (svg, width) => {
    const room = 16 + 7 * (d3.max(kept, g => g.name.length) || 0);
    // Where names would take much of the width they stand above their rows.
    const layout = room > 0.4 * width ? {left: 10, above: 1} : {left: room, above: 0};
    const kRow = 19, nRows = rows.length + (0.6 + layout.above) * kept.length;
    const box = {left: layout.left, right: width - 16, top: 8, bottom: 8 + kRow * nRows};
    const values = rows.flatMap(r => [r.value, r.low, r.high]).filter(isNumber);
    const x = domain ? d3.scaleLinear().domain(domain).range([box.left, box.right])
      : scaleFor(values, log, [box.left, box.right]);
    const ticks = log ? logTicks(x, (box.right - box.left) / 50) : x.ticks(5);
    for (const t of ticks) {
      svg.append('line').attr('class', 'grid').attr('x1', x(t)).attr('x2', x(t))
        .attr('y1', box.top).attr('y2', box.bottom);
    }
    if (zero && !log) {
      svg.append('line').attr('class', 'reference').attr('x1', x(0)).attr('x2', x(0))
        .attr('y1', box.top).attr('y2', box.bottom);
    }
    svg.append('g').attr('class', 'axis').attr('transform', `translate(0,${box.bottom})`)
      .call(d3.axisBottom(x).tickValues(ticks).tickSizeOuter(0)
        .tickFormat(log ? formatPower : d3.format('~g')));
    svg.append('text').attr('x', box.right).attr('y', box.bottom + 36).attr('text-anchor', 'end')
      .text(xTitle);
    drawIntervals(svg, kept, x, box, kRow, layout.above);
    return box.bottom + 44;
  };
  return figure({title, caption, wide, draw, isEmpty: rows.length === 0,
    legendFor: () => (names.length > 1 || kept.some(g => g.rows.length > 1)
      ? legend(names, 'dot') : null)});
}

function drawIntervals(svg, groups, x, box, kRow, above) {
  let top = box.top;
  for (const g of groups) {
    const tall = kRow * (g.rows.length + 0.6 + above);
    const name = svg.append('text').attr('class', 'small').text(g.name);
    if (above) {
      name.attr('x', 0).attr('y', top + 15);
    } else {
      name.attr('x', box.left - 10).attr('y', top + tall / 2 + 4).attr('text-anchor', 'end');
    }
    svg.append('line').attr('class', 'grid').attr('x1', 0).attr('x2', box.right)
      .attr('y1', top + tall).attr('y2', top + tall);
    g.rows.forEach((r, i) => {
      const y = top + kRow * (i + 0.8 + above);
      const row = svg.append('g').attr('class', colourClass(r.style)).attr('data-series', r.name);
      if (isNumber(r.low) && isNumber(r.high)) {
        row.append('line').attr('class', 'error').attr('x1', x(r.low)).attr('x2', x(r.high))
          .attr('y1', y).attr('y2', y).attr('stroke-width', 3);
      }
      row.append('path').attr('class', 'mark').attr('d', symbolPath(r.style, 64))
        .attr('transform', `translate(${x(r.value)},${y})`)
        .append('title').text(`${g.name}, ${r.name}: ${formatInterval(r)}`);
    });
    top += tall;
  }
}

// --- Heat maps

// cells: [{column, row, value, name}]; columns and rows in their order. log: a logarithmic scale
// of colours. Colours are of one scale that readers without colour vision can order, the same in
// both themes.
function heatMap({title, caption, wide = true, columns, rows, cells, columnTitle, rowTitle,
  valueTitle, log = false, domain, format = formatNumber, tickFormat}) {
  const fit = cells.filter(c => isNumber(c.value) && (!log || c.value > 0));
  const [low, high] = domain || extentOf(fit.map(c => c.value), log);
  const ends = low === high ? (log ? [low / 2, high * 2] : [low, low + 1]) : [low, high];
  const place = log ? d3.scaleLog().domain(ends).range([0, 1]).clamp(true)
    : d3.scaleLinear().domain(ends).range([0, 1]).clamp(true);
  const colour = v => d3.interpolateViridis(place(v));
  const draw = (svg, width) => {
    const wordy = d3.max(rows, r => String(r).length);
    const left = Math.max(34, Math.min(0.34 * width, 14 + 6.4 * wordy));
    const box = {left, right: width - 4, top: 62};
    const cell = (box.right - box.left) / columns.length;
    const tall = Math.max(rows.length > 24 ? 9 : 15, Math.min(26, 0.8 * cell));
    const gap = cell > 8 ? 1 : 0;
    colourBar(svg, {width, left: 0, place, ends, log, valueTitle, colour,
      format: tickFormat || (log ? formatPower : d3.format('~g'))});
    const known = new Map(fit.map(c => [`${c.column}/${c.row}`, c]));
    rows.forEach((row, r) => {
      columns.forEach((column, c) => {
        const found = known.get(`${column}/${row}`);
        const rect = svg.append('rect').attr('class', found ? 'cell' : 'blank')
          .attr('x', box.left + c * cell).attr('y', box.top + r * tall)
          .attr('width', Math.max(0.5, cell - gap)).attr('height', tall - gap);
        if (!found) return;
        rect.attr('fill', colour(found.value)).append('title')
          .text(`${found.name}: ${format(found.value)}`);
      });
    });
    heatAxes(svg, {box, columns, rows, cell, tall, columnTitle, rowTitle});
    return box.top + rows.length * tall + 38;
  };
  return figure({title, caption, wide, draw, isEmpty: fit.length === 0});
}

function heatAxes(svg, {box, columns, rows, cell, tall, columnTitle, rowTitle}) {
  const everyColumn = Math.ceil(24 / cell), everyRow = Math.ceil(12 / tall);
  const axis = svg.append('g').attr('class', 'axis');
  const bottom = box.top + rows.length * tall;
  columns.forEach((c, i) => {
    if (i % everyColumn !== 0) return;
    axis.append('text').attr('x', box.left + (i + 0.5) * cell).attr('y', bottom + 14)
      .attr('text-anchor', 'middle').text(c);
  });
  rows.forEach((r, i) => {
    if (i % everyRow !== 0) return;
    axis.append('text').attr('x', box.left - 7).attr('y', box.top + (i + 0.5) * tall + 4)
      .attr('text-anchor', 'end').text(r);
  });
  svg.append('text').attr('x', box.right).attr('y', bottom + 32).attr('text-anchor', 'end')
    .text(columnTitle);
  svg.append('text').attr('x', 0).attr('y', box.top - 8).text(rowTitle);
}

function colourBar(svg, {width, left, place, ends, log, valueTitle, colour, format}) {
  const n = 60, right = left + Math.min(260, width - 20), step = (right - left) / n;
  const x = place.copy().range([left, right]);
  svg.append('text').attr('x', left).attr('y', 11).text(valueTitle);
  for (let i = 0; i < n; ++i) {
    svg.append('rect').attr('class', 'scale').attr('x', left + i * step).attr('y', 17)
      .attr('width', step + 0.5).attr('height', 9)
      .attr('fill', colour(place.invert((i + 0.5) / n)));
  }
  const ticks = log ? logTicks(x, (right - left) / 50) : x.ticks(5);
  const axis = svg.append('g').attr('class', 'axis');
  for (const t of ticks) {
    axis.append('text').attr('x', Math.max(left + 8, Math.min(x(t), right - 4))).attr('y', 38)
      .attr('text-anchor', 'middle').text(format(t));
  }
}

// --- Pairs

// pairs: [{name, from: {x, y, name}, to: {x, y, name}}]: an arrow for each.
function arrowChart({title, caption, pairs, xTitle, yTitle, fromName, toName}) {
  const draw = (svg, width) => {
    const box = {left: 52, right: width - 14, top: 24, bottom: 24 + Math.min(340, 0.8 * width)};
    const both = pairs.flatMap(p => [p.from, p.to]);
    const x = scaleFor(both.map(p => p.x), true, [box.left + 8, box.right - 8]);
    const y = scaleFor(both.map(p => p.y), true, [box.bottom - 8, box.top + 8]);
    axes(svg, {x, y, xTitle, yTitle, box, xLog: true, yLog: true});
    for (const p of pairs) {
      svg.append('line').attr('class', 'c6 error').attr('x1', x(p.from.x)).attr('y1', y(p.from.y))
        .attr('x2', x(p.to.x)).attr('y2', y(p.to.y)).attr('opacity', 0.6);
      for (const [end, style] of [[p.from, 1], [p.to, 0]]) {
        svg.append('path').attr('class', `mark ${colourClass(style)}`)
          .attr('d', symbolPath(style, 64)).attr('transform', `translate(${x(end.x)},${y(end.y)})`)
          .append('title').text(`${p.name}, ${end.name}\n${xTitle}: ${formatNumber(end.x)}\n${
            yTitle}: ${formatNumber(end.y)}`);
      }
    }
    return box.bottom + 44;
  };
  return figure({title, caption, draw, legendFor: () => legend(
    [{name: fromName, style: 1}, {name: toName, style: 0}], 'dot')});
}
