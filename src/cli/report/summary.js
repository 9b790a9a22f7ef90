// What the numbers say, in words. Every sentence is put together from figures of the document; a
// claim "comes out" when its figure is on the published side by more than its uncertainty (the
// whole 95 % interval, or two standard errors), "does not" when it is as clearly on the other side.

const kYesNo = {yes: 'comes out', no: 'does not come out', open: 'not decided'};

// The side of `bound` on which an interval, or two errors around a mean, lies: 1 above, -1 below,
// 0 when it holds the bound or nothing is known about its size.
function side(x, bound) {
  if (!x || !isNumber(x.value)) return 0;
  const low = 'low' in x ? x.low : isNumber(x.error) ? x.value - 2 * x.error : null;
  const high = 'high' in x ? x.high : isNumber(x.error) ? x.value + 2 * x.error : null;
  if (!isNumber(low) || !isNumber(high)) return 0;
  return low > bound ? 1 : high < bound ? -1 : 0;
}

// All tests agree: yes; any is clearly against: no.
function verdictOf(...sides) {
  return sides.some(s => s < 0) ? 'no' : sides.every(s => s > 0) ? 'yes' : 'open';
}

function difference(a, b) {
  return {value: a.value - b.value, error: isNumber(a.error) && isNumber(b.error)
    ? Math.hypot(a.error, b.error) : null};
}

function factor(m) { return `${formatMean(m)} times`; }

function times(i) { return `${formatInterval(i)} times`; }

// Each claim: {id, title, verdict, text}; null where the document lacks its experiment.
const kClaims = {
  metrics(report) {
    const m = at(report, `${E}.metrics`);
    const row = (table, name) => table.spearman.find(r => r.metric === name);
    const fisher = row(m.key_kl, 'fisher').equal_bits, mse = row(m.key_kl, 'mse').equal_bits;
    const a2 = row(m.values, 'a2_mse').equal_bits, v = row(m.values, 'mse').equal_bits;
    const gain = m.key_kl.gain.equal_bits, valueGain = m.values.gain.equal_bits;
    return {title: 'What attention weighs predicts the harm, storage error does not',
      verdict: verdictOf(side(gain, 0), side(valueGain, 0)),
      text: `Among key codecs of equal bits the Fisher variance ranks the attention KL with a ` +
        `correlation of ${formatInterval(fisher)}, storage MSE with ${formatInterval(mse)}: a ` +
        `gain of ${formatInterval(gain)} (published: 0.62 to 0.69 on six models). For values the ` +
        `A² error reaches ${formatInterval(a2)}, storage MSE ${formatInterval(v)} (published: ` +
        `0.98 against 0.49).`};
  },
  counterexamples(report) {
    const {by_mse: mse, by_fisher: fisher, margin} = at(report, `${E}.counterexamples`);
    return {title: 'Less storage error can do more harm',
      verdict: verdictOf(side(mse.significant_share, 0),
        side(difference(mse.share, fisher.share), 0)),
      text: `Of ${mse.n_pairs} pairs of codecs with equal bits on the same head, and storage ` +
        `errors more than ${formatNumber(100 * margin)} % apart, ${mse.n_reversed} (` +
        `${formatPercent(mse.share)} of a head’s pairs) are the wrong way round: the one that ` +
        `better more harm to attention and to its output, ${mse.n_significant} of them beyond ` +
        `two standard errors. Ordered by Fisher variance, ${formatPercent(fisher.share)} are.`};
  },
  null_space(report) {
    const n = at(report, `${E}.null_space`);
    const most = Math.max(...n.rows.map(r => r.multiple));
    const ratio = (codec, multiple) => {
      const found = n.rows.find(r => r.codec === codec && r.multiple === multiple);
      return found ? found.kl_ratio : null;
    };
    const grid = ratio('token2', most), channel = ratio('kivi2', most);
    const centred = ratio('token2c', most);
    // Equivariant codecs move by rounding alone: 2 % is far above it and far below any damage.
    const still = x => (x ? -side({...x, value: Math.abs(x.value - 1)}, 0.02) : 0);
    return {title: 'A shift that attention cannot see ruins codecs that can',
      verdict: verdictOf(side(grid, 1), still(channel), still(centred)),
      text: `Adding ${most} times a head’s mean key to all keys changes dense attention by at ` +
        `most ${formatNumber(Math.max(...n.dense.map(d => d.kl_max)))} nats. A 2-bit grid shared ` +
        `by a token’s channels (token2) then does ${factor(grid)} the harm; a grid that follows ` +
        `the channel (kivi2) ${factor(channel)}, and the first one behind a subtracted mean ` +
        `(token2c) ${factor(centred)}.`};
  },
  deployability(report) {
    const d = at(report, `${E}.deployability`);
    const row = d.rows.find(r => r.rank === 4) || d.rows[d.rows.length - 1];
    const basis = name => row.bases.find(b => b.basis === name);
    const query = basis('query'), random = basis('random'), key = basis('key');
    return {title: 'The directions that queries use can be learned beforehand',
      verdict: verdictOf(side(difference(random.kl_ratio, query.kl_ratio), 0),
        side(difference(key.kl_ratio, query.kl_ratio), 0), side(row.oracle_gain_reached, 0.5)),
      text: `At rank ${row.rank} (${formatBits(row.bits)} bits) a correction along query ` +
        `directions from other text leaves ${factor(query.kl_ratio)} the KL of ${d.base} alone, ` +
        `key directions ${factor(key.kl_ratio)}, along random ones ${factor(random.kl_ratio)}. ` +
        `It reaches ${formatInterval(row.oracle_gain_reached)} of what directions made from this ` +
        `very text gain, and beats random ones in ${formatPercent(random.query_wins)} of the ` +
        'heads.'};
  },
  direction(report) {
    const d = at(report, `${E}.direction`);
    return {title: 'The correction’s sign matters',
      verdict: verdictOf(-side(d.right.kl_ratio, 1), side(d.wrong.kl_ratio, 1)),
      text: `Added, the correction leaves ${factor(d.right.kl_ratio)} the KL; subtracted, it ` +
        `makes ${factor(d.wrong.kl_ratio)} of it. The order added < left out < subtracted holds ` +
        `in ${formatPercent(d.ordered)} of ${d.n_heads} KV heads.`};
  },
  full_model(report) {
    const rows = at(report, `${E}.full_model.keys_only`) || [], least = Math.min(
      ...rows.map(r => r.bits));
    const row = role => rows.find(r => r.role === role && r.bits === least
      && (r.rank === null || r.rank === 4));
    const right = row('side_code'), others = ['wide_base', 'random_basis', 'wrong_sign'].map(row)
      .filter(Boolean);
    const words = {wide_base: 'spent on the base instead', random_basis: 'along random directions',
      wrong_sign: 'with the wrong sign'};
    if (!right) {
      return {title: 'The whole model agrees', verdict: 'open',
        text: 'No correction of rank 4 was measured through the whole model.'};
    }
    return {title: 'The whole model agrees',
      verdict: verdictOf(side(right.kld_removed, 0), ...others.map(r =>
        side(difference(right.kld_removed, r.kld_removed), 0))),
      text: `With keys at ${least} bits and values dense, the correction of rank ${right.rank} ` +
        `removes ${formatPercent(right.kld_removed)} of the next token’s KLD and ` +
        `${formatPercent(right.excess_ppl_removed)} of the excess perplexity. The same bits ` +
        `${inWords(others.map(r => `${words[r.role]} remove ${formatPercent(r.kld_removed)}`))} ` +
        `of the KLD.`};
  },
  a2_policy(report) {
    const a = at(report, `${E}.a2_policy`);
    const other = policy => a.paid_over.find(r => r.policy === policy);
    const row = policy => a.rows.find(r => r.policy === policy);
    const uniform = other('uniform'), random = other('random'), paid = row('paid');
    return {title: 'Values deserve bits by the attention paid to them',
      verdict: verdictOf(-side(uniform.output_error_ratio, 1), -side(random.output_error_ratio, 1)),
      text: `Half a bit more for values, spent on the quarter of a block’s tokens that was ` +
        `attended to most until it is coded, leaves ${times(paid.output_ratio)} the output ` +
        `error of kivi2: ${times(uniform.output_error_ratio)} that of the same bits spread over ` +
        `all tokens, ${times(random.output_error_ratio)} that of random tokens. These tokens ` +
        `get ${formatPercent(paid.captured)} of the squared attention paid later.`};
  },
  route_flips(report) {
    const r = at(report, `${E}.route_flips`);
    const part = (entropy, route) => r.regimes.find(
      g => g.entropy === entropy && g.route === route);
    const low = part('low', 'flipped'), named = r.layers.filter(l => l.low_entropy_regime);
    const other = part('high', 'kept');
    const layers = named.length === 0 ? 'No layer has much of its harm there.'
      : `${named.length === 1 ? 'Layer' : 'Layers'} ${inWords(named.map(l => String(l.layer)))} ` +
        `${named.length === 1 ? 'has' : 'have'} at least a tenth of the harm there.`;
    return {title: 'Where confident attention flips, a quadratic measure misses the harm',
      verdict: verdictOf(-side(low.fisher_over_kl, 0.75),
        side(gapOf(other.fisher_over_kl, low.fisher_over_kl), 0)),
      text: low.n_cases === 0
        ? 'No query of low entropy changed its likeliest token, so this text cannot tell.'
        : `The Fisher variance is ${formatInterval(other.fisher_over_kl)} of the KL where ` +
          `is spread and its likeliest token stays, ${formatInterval(low.fisher_over_kl)} where ` +
          `it is sharp and flips; those are ${formatPercent(low.share)} of the cases and hold ` +
          `${formatPercent(low.damage_share)} of the KL. ${layers}`};
  },
};

// The difference of two intervals, at its most cautious.
function gapOf(a, b) {
  return {value: isNumber(a.value) && isNumber(b.value) ? a.value - b.value : null,
    low: isNumber(a.low) && isNumber(b.high) ? a.low - b.high : null,
    high: isNumber(a.high) && isNumber(b.low) ? a.high - b.low : null};
}

function badge(verdict) { return el('span', {class: `badge ${verdict}`}, kYesNo[verdict]); }

function claimsOf(report) {
  return Object.entries(kClaims).filter(([id]) => at(report, `${E}.${id}`) !== undefined)
    .map(([id, claim]) => ({id, ...claim(report)}));
}

// --- What the model needs

// " (2.78 bits)" where the document knows them.
function bitsOf(report, name) {
  const codec = (at(report, `${E}.metrics.key_codecs`) || []).find(c => c.codec === name);
  return codec ? ` (${formatBits(codec.bits)} bits)` : '';
}

function needs(report) {
  const out = [];
  const n = at(report, `${E}.null_space`), d = at(report, `${E}.direction`);
  const r = at(report, `${E}.route_flips`);
  if (n) {
    const mean = n.rows.find(row => row.codec === 'token2' && row.multiple === -1);
    const effect = mean ? side(mean.kl_ratio, 1) : 0;
    const change = mean ? `the KL of a 2-bit grid over a token’s channels becomes ` +
      `${factor(mean.kl_ratio)} as large` : '';
    if (effect < 0) {
      out.push('Keys need a code that does not pay for their mean: when it is taken away, ' +
        `${change}.`);
    } else if (mean) {
      out.push(`The mean of the keys does not stand in the way: when it is taken away, ${change}.`);
    }
  }
  if (d) {
    const bits = name => `${name}${bitsOf(report, name)}`;
    out.push(side(d.right.kl_ratio, 1) < 0
      ? `Precision along the few directions that queries use: ${bits(d.right.codec)} leaves ` +
        `${factor(d.right.kl_ratio)} the KL of ${bits(d.none.codec)}.`
      : `Precision along the directions that queries use does not clearly pay here: ` +
        `${bits(d.right.codec)} leaves ${factor(d.right.kl_ratio)} the KL of ` +
        `${bits(d.none.codec)}.`);
  }
  const m = at(report, `${E}.metrics`);
  if (m) {
    out.push(side(m.values.gain.equal_bits, 0) > 0
      ? 'Values coded for the attention they get (A² error), not for how well they are stored.'
      : 'Values: the A² error is no clearly better guide than storage error here.');
  }
  if (r) {
    const named = r.layers.filter(l => l.low_entropy_regime).map(l => String(l.layer));
    if (named.length > 0) {
      out.push(`More bits, or a look at the outputs, in layer${named.length > 1 ? 's' : ''} ` +
        `${inWords(named)}: sharp attention flips there, and Fisher variance underrates it.`);
    }
  }
  return out;
}

// --- Which policy we would pick, and what it costs

const kMostBits = 3;  // an element, on either side: the range that the method is for

function isControl(name) { return /@|-hq/.test(name); }

// Of the codecs of at most kMostBits the one that does the least harm, or the cheapest of those
// that are not clearly worse than it, by two errors of the difference.
function pick(codecs, harm) {
  const fit = codecs.filter(c => c.bits <= kMostBits + 1e-6 && !isControl(c.codec)
    && isNumber(c[harm].value)).sort((a, b) => a[harm].value - b[harm].value);
  const [best] = fit;
  return fit.filter(c => c === best || side(difference(c[harm], best[harm]), 0) === 0)
    .sort((a, b) => a.bits - b.bits || a[harm].value - b[harm].value)[0];
}

// From attention alone: a codec for each side.
function attentionPolicy(report) {
  const m = at(report, `${E}.metrics`);
  if (!m || !m.key_codecs) return null;
  const keys = pick(m.key_codecs, 'kl'), values = pick(m.value_codecs, 'output_error');
  if (!keys || !values) return null;
  const named = name => m.key_codecs.find(c => c.codec === name);
  const bits = (keys.bits + values.bits) / 2, four = named('kivi4');
  return {name: `${keys.codec}/${values.codec}`, bits,
    why: [`Of the codecs measured here with at most ${kMostBits} bits an element, ${keys.codec} ` +
      `for keys (KL ${formatMean(keys.kl)} nats) and ${values.codec} for values (output error ` +
      `${formatMean(values.output_error)}) are the cheapest that no other clearly beats.`,
    'This is read off attention, head by head; what the next token loses is for headq ppl to say.'],
    cost: [`${formatBits(keys.bits)} bits for keys and ${formatBits(values.bits)} for values ` +
      `packed, ${formatNumber(16 / bits, 2)} times less than 16. The ${at(report, 'window')} ` +
      `latest and ${at(report, 'sinks')} first tokens stay dense.`,
    four ? `A query’s attention moves by a KL of ${formatMean(keys.kl)} nats; with ${four.codec} ` +
      `(${formatBits(four.bits)} bits) it would be ${formatMean(four.kl)}, and rounding to 16 ` +
      `bits alone makes ${formatMean(at(report, 'noise_floor.f16_kl'))}.` : null].filter(Boolean)};
}

// From the whole model: of the caches with both sides packed at kMostBits or less, the one that
// moves the next token least.
function modelPolicy(report) {
  const full = at(report, `${E}.full_model`);
  const rows = ((full && full.full_kv) || []).filter(r => isNumber(r.packed_bits)
    && r.packed_bits <= kMostBits + 1e-6 && !isControl(r.kv) && isNumber(r.kld.value));
  if (rows.length === 0) return null;
  const [best] = rows.sort((a, b) => a.kld.value - b.kld.value);
  const q4 = (full.llama_cpp || []).find(r => r.kv === 'q4_0');
  return {name: best.kv, bits: best.packed_bits,
    why: [`Of the caches measured through the whole model with at most ${kMostBits} bits an ` +
      `element in packed blocks, this one moves the distribution of the next token least: a KLD ` +
      `of ${formatMean(best.kld)} nats.`,
    q4 ? `llama.cpp’s q4_0, at ${formatBits(q4.true_bits)} bits, has ${formatMean(q4.kld)}.` : null]
      .filter(Boolean),
    cost: [`${formatNumber(16 / best.packed_bits, 2)} times less than 16 bits once packed; ` +
      `${formatBits(best.true_bits)} true bits with everything the cache held at ` +
      `${full.n_ctx} tokens.`,
    `A perplexity ${factor(best.ppl_ratio)} that of the dense cache, and the same likeliest ` +
      `token in ${formatPercent(best.top1)} of the positions.`]};
}

function card(title, merit, paragraphs, list = false) {
  return el('article', {class: 'answer'}, el('h3', {}, title),
    merit ? el('p', {class: 'figure-of-merit'}, merit) : null,
    list ? el('ul', {}, paragraphs.map(p => el('li', {}, p)))
      : paragraphs.map(p => el('p', {}, p)));
}

function summarySection(report, claims) {
  const policy = modelPolicy(report) || attentionPolicy(report);
  const count = verdict => claims.filter(c => c.verdict === verdict).length;
  const parts = [['yes', 'come out'], ['no', 'do not'], ['open', 'are not decided']]
    .filter(([verdict]) => count(verdict) > 0)
    .map(([verdict, words]) => (
      `${count(verdict) === claims.length ? 'all' : count(verdict)} ${words}`));
  return el('section', {id: 'summary', 'aria-labelledby': 'summary-title'},
    el('h2', {id: 'summary-title'}, 'In short'),
    el('p', {class: 'lead'}, 'A packed cache makes errors in keys and values; attention sees ' +
      `some of them and not others. Of the ${claims.length} published findings about which, on ` +
      `this model and text ${inWords(parts)}.`),
    el('div', {class: 'answers'},
      card('What this model needs', null, needs(report), true),
      policy ? card('Which policy we would pick', policy.name, policy.why) : null,
      policy ? card('What it costs', `${formatBits(policy.bits)} bits an element`, policy.cost)
        : null),
    el('h3', {}, 'The findings, one by one'),
    el('ul', {class: 'claims'}, claims.map(c => el('li', {'data-claim': c.id,
      'data-verdict': c.verdict}, badge(c.verdict),
    el('div', {}, el('strong', {}, el('a', {href: `#${c.id}`}, c.title)), c.text)))),
    el('p', {class: 'quiet'}, 'A finding comes out when its figure is on the published side by ' +
      'more than its uncertainty. a ± b is a mean and its standard error; a [b, c] a figure with ' +
      'the interval that holds 95 % of its bootstrap draws. They say how a figure would move ' +
      'with other heads of this model, not with other models.'));
}
