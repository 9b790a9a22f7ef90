"""What must hold of a report's page in a browser. Each check returns the faults it finds, so that a
test can also see that it finds a planted one."""

import math
import re

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
CELLS = ("key_cells", "value_cells")


def event_faults(browser, page):
    """Console messages, exceptions, blocked content, and requests for anything but the page."""
    out = []
    for event in browser.events:
        name, params = event.get("method"), event.get("params", {})
        if name == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            out.append(f"exception: {details.get('exception', {}).get('description', details)}")
        elif name == "Runtime.consoleAPICalled":
            out.append(f"console: {params['type']} {params['args']}")
        elif name == "Log.entryAdded":
            out.append(f"log: {params['entry']['text']}")
        elif name == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if url != page.as_uri() and not url.startswith("data:"):
                out.append(f"request: {url}")
    return out


# --- Charts

def drawing_faults(browser):
    """Figures without marks, marks outside of their chart, attributes that are no numbers."""
    return browser.evaluate("""(() => {
      const faults = [];
      const figures = [...document.querySelectorAll('figure')];
      if (figures.length < 10) faults.push(`only ${figures.length} figures`);
      for (const figure of figures) {
        const title = figure.querySelector('h3').textContent;
        const svg = figure.querySelector('.plot > svg');
        if (!svg) { faults.push(`${title}: no chart`); continue; }
        const frame = svg.getBoundingClientRect();
        if (frame.width < 200 || frame.height < 60) faults.push(`${title}: too small`);
        const marks = [...svg.querySelectorAll('.mark, .marks, .cell')];
        if (marks.length === 0) faults.push(`${title}: no marks`);
        for (const node of svg.querySelectorAll('*')) {
          for (const a of node.attributes) {
            if (/NaN|undefined|Infinity|null/.test(a.value)) {
              faults.push(`${title}: ${node.nodeName} ${a.name}=${a.value.slice(0, 60)}`);
            }
          }
        }
        for (const node of marks) {
          const box = node.getBoundingClientRect(), slack = 8;
          if (box.left < frame.left - slack || box.right > frame.right + slack ||
              box.top < frame.top - slack || box.bottom > frame.bottom + slack) {
            faults.push(`${title}: a mark outside of its chart`);
          }
        }
        const texts = [...svg.querySelectorAll('text')].map(t => t.textContent);
        if (!texts.some(t => /[a-z]{3}/i.test(t))) faults.push(`${title}: axes without titles`);
        if (figure.querySelector('figcaption').textContent.length < 40) {
          faults.push(`${title}: no caption`);
        }
      }
      return faults;
    })()""")


def marks_by_figure(browser):
    """title -> (marks, dots of scatters, cells of maps)."""
    rows = browser.evaluate("""[...document.querySelectorAll('figure')].map(f => [
      f.querySelector('h3').textContent,
      f.querySelectorAll('.plot .mark').length,
      [...f.querySelectorAll('.plot .marks')].reduce(
        (n, p) => n + (p.getAttribute('d').match(/M/g) || []).length, 0),
      f.querySelectorAll('.plot .cell').length])""")
    return {title: tuple(counts) for title, *counts in rows}


def has(figure):
    return figure is not None and figure.get("value") is not None


def expected_marks(report):
    """What marks_by_figure() must give for a document, from its figures alone."""
    e = report["experiments"]
    m, out = e["metrics"], {}

    def dots(cells, x, y):
        return (0, sum(a > 0 and b > 0 for a, b in zip(cells[x], cells[y])), 0)

    out["Keys: storage error against harm"] = dots(m["key_cells"], "mse", "kl")
    out["Keys: Fisher variance against harm"] = dots(m["key_cells"], "fisher", "kl")
    out["Values: storage error against harm"] = dots(m["value_cells"], "mse", "output_error")
    out["Values: A² error against harm"] = dots(m["value_cells"], "a2_mse", "output_error")
    scopes = ("overall", "equal_bits", "within_layer", "layer_equal_bits", "within_head")
    for title, table in (("Keys", "key_kl"), ("Values", "values")):
        out[f"{title}: how well each measure ranks the harm"] = (
            sum(has(row[s]) for row in m[table]["spearman"] for s in scopes), 0, 0)
    c = e["counterexamples"]
    if c["shown"]:
        out["The largest counterexamples"] = (2 * len(c["shown"]), 0, 0)
    out["How often the better-looking codec does more harm"] = (4, 0, 0)
    out["Harm when all keys get the same vector added"] = (
        sum(has(r["kl"]) and r["kl"]["value"] > 0 for r in e["null_space"]["rows"]), 0, 0)
    d = e["deployability"]["rows"]
    out["Harm left by the rank of the correction"] = (
        sum(has(b["kl_ratio"]) for r in d for b in r["bases"]), 0, 0)
    out["What calibration on other text is worth"] = (
        sum(has(r["oracle_gain_reached"]) for r in d), 0, 0)
    out["Attention with the correction added, left out and subtracted"] = (6, 0, 0)
    out["The attention output with it added, left out and subtracted"] = (3, 0, 0)
    a = e["a2_policy"]["rows"]
    out["What half a bit more for values is worth"] = (
        sum(has(row[k]) for row in a for k in ("output_ratio", "a2_ratio")), 0, 0)
    out["How much later attention the chosen tokens get"] = (
        sum(has(row["captured"]) for row in a), 0, 0)
    r = e["route_flips"]
    out["Where the harm is"] = (
        sum(has(g[k]) for g in r["regimes"] for k in ("share", "damage_share")), 0, 0)
    out["Where the second order is enough"] = (
        sum(has(g["fisher_over_kl"]) for g in r["regimes"]), 0, 0)
    parts = (("flipped", "share"), ("flipped", "damage_share"), ("low_entropy", "share"),
             ("low_entropy", "damage_share"), ("low_entropy_flipped", "damage_share"))
    out["Route flips by layer"] = (
        0, 0, sum(has(layer[p][k]) for layer in r["layers"] for p, k in parts))
    cells, names = m["key_cells"], [k["codec"] for k in m["key_codecs"]]
    for title, side in (("Harm by head", "none"), ("Harm left by head", "right")):
        name = e["direction"][side]["codec"]
        n = sum(names[i] == name for i in cells["codec"])
        out[f"{title}: {name}"] = (0, 0, n)
    return out


def count_faults(browser, report):
    found, expected = marks_by_figure(browser), expected_marks(report)
    return [f"{title}: marks {found.get(title)}, expected {counts}"
            for title, counts in expected.items() if found.get(title) != counts]


def add_style(browser, rules):
    browser.evaluate(f"""(() => {{ const sheet = new CSSStyleSheet(); sheet.replaceSync({rules!r});
      document.adoptedStyleSheets.push(sheet); }})()""")


def paint_faults(browser):
    """Charts whose marks leave no trace: hiding them must change the pixels of their figure."""
    out = []
    titles = browser.evaluate(
        "[...document.querySelectorAll('figure > h3')].map(t => t.textContent)")
    before = [browser.pixels(f"document.querySelectorAll('.plot')[{i}]")
              for i in range(len(titles))]
    add_style(browser, ".mark, .marks, .cell { visibility: hidden }")
    for i, title in enumerate(titles):
        if browser.pixels(f"document.querySelectorAll('.plot')[{i}]") == before[i]:
            out.append(f"{title}: its marks cannot be seen")
    browser.evaluate("document.adoptedStyleSheets.pop()")
    return out


# --- Layout and legibility

def overflow_faults(browser):
    """Anything that makes the page wider than the window, and chart text that is cut off."""
    return browser.evaluate("""(() => {
      const faults = [], wide = document.documentElement.clientWidth;
      if (document.documentElement.scrollWidth > wide) {
        faults.push(`the page is ${document.documentElement.scrollWidth} wide in ${wide}`);
      }
      for (const t of document.querySelectorAll('.plot text')) {
        const box = t.getBoundingClientRect();
        if (box.width > 0 && (box.left < 0 || box.right > wide + 0.5)) {
          faults.push(`chart text out of the window: ${t.textContent}`);
        }
      }
      return faults;
    })()""")


def overlap_faults(browser):
    """Tick labels and titles of a chart that lie on each other."""
    return browser.evaluate("""(() => {
      const faults = [];
      for (const svg of document.querySelectorAll('.plot > svg')) {
        const boxes = [...svg.querySelectorAll('text:not(.reference-label)')].map(
          t => [t.textContent, t.getBoundingClientRect()]).filter(([, b]) => b.width > 0);
        for (let i = 0; i < boxes.length; ++i) for (let j = 0; j < i; ++j) {
          const [a, p] = boxes[i], [b, q] = boxes[j];
          const across = Math.min(p.right, q.right) - Math.max(p.left, q.left);
          const down = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
          if (across > 1 && down > 4) {
            faults.push(`${svg.closest('figure').querySelector('h3').textContent}: ${a} on ${b}`);
          }
        }
      }
      return faults;
    })()""")


def contrast_faults(browser, least=4.5):
    """Texts whose contrast with what lies behind them is below WCAG's AA level."""
    texts = browser.evaluate("""(() => {
      const behind = node => {
        for (; node; node = node.parentElement) {
          const colour = getComputedStyle(node).backgroundColor;
          if (!/rgba\\(.*, 0\\)|transparent/.test(colour)) return colour;
        }
        return 'rgb(255, 255, 255)';
      };
      const out = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
      while (walker.nextNode()) {
        const node = walker.currentNode.parentElement;
        if (!walker.currentNode.data.trim() ||
            /script|style|noscript|option/i.test(node.nodeName) ||
            node.nodeName === 'title') continue;
        const style = getComputedStyle(node);
        const isChart = node instanceof SVGElement;
        out.push([walker.currentNode.data.trim().slice(0, 40), isChart ? style.fill : style.color,
          behind(isChart ? node.closest('div') : node)]);
      }
      return out;
    })()""")
    out = [] if len(texts) > 100 else [f"only {len(texts)} texts on the page"]
    for text, front, back in texts:
        ratio = contrast(colour(front), colour(back))
        if not ratio >= least:
            out.append(f"contrast {ratio:.2f}: {text!r} in {front} on {back}")
    return sorted(set(out))


def mark_contrast_faults(browser, least=3.0):
    """Series whose colour hardly shows on the page (WCAG: 3 for graphics)."""
    colours = browser.evaluate("""[...document.querySelectorAll('.plot .mark')].map(
      n => getComputedStyle(n).fill)""")
    page = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    return [f"contrast of {c} on {page}" for c in set(colours)
            if not contrast(colour(c), colour(page)) >= least]


def colour(text):
    return [float(x) for x in re.findall(r"[\d.]+", text)[:3]]


def contrast(a, b):
    def luminance(rgb):
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4
                  for x in (v / 255 for v in rgb)]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


# --- Structure

def structure_faults(browser):
    return browser.evaluate("""(() => {
      const faults = [];
      if (document.querySelectorAll('h1').length !== 1) faults.push('not one h1');
      if (!document.documentElement.lang) faults.push('no language');
      if (!document.title.includes(document.querySelector('h1').textContent)) faults.push('title');
      let level = 1;
      for (const h of document.querySelectorAll('h1, h2, h3')) {
        if (+h.nodeName[1] > level + 1) faults.push(`heading skips: ${h.textContent}`);
        level = +h.nodeName[1];
      }
      const ids = [...document.querySelectorAll('[id]')].map(n => n.id);
      if (new Set(ids).size !== ids.length) faults.push('an id twice');
      for (const a of document.querySelectorAll('a')) {
        if (!document.querySelector(a.getAttribute('href'))) faults.push(`dead link: ${a.href}`);
      }
      for (const svg of document.querySelectorAll('.plot > svg')) {
        const names = (svg.getAttribute('aria-labelledby') || '').split(' ');
        if (svg.getAttribute('role') !== 'img' ||
            !names.every(n => document.getElementById(n)?.textContent)) faults.push('svg unnamed');
      }
      for (const table of document.querySelectorAll('table')) {
        if (!table.caption?.textContent) faults.push('a table without caption');
        if (!table.querySelector('thead th[scope=col]')) faults.push('a table without header');
        const n = table.rows[0].cells.length;
        if ([...table.rows].some(r => r.cells.length !== n)) faults.push('a ragged table');
        if ([...table.tBodies[0].rows].some(r => r.cells[0].scope !== 'row')) {
          faults.push('a row without header');
        }
      }
      if (document.querySelector('.failure')) faults.push('a part of the page failed');
      return faults;
    })()""")


# --- Figures

def at(report, path):
    for key in path.split("."):
        report = report[int(key)] if isinstance(report, list) else report[key]
    return report


def leaves(node, path=""):
    """Paths of all figures: numbers, texts, and means and intervals as wholes."""
    if isinstance(node, dict) and "value" not in node:
        for key, inner in node.items():
            if key not in CELLS:
                yield from leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(node, list):
        for i, inner in enumerate(node):
            yield from leaves(inner, f"{path}.{i}")
    else:
        yield path


def shown_faults(text, value):
    """Whether a text shows a figure: each number within half a unit of its last digit."""
    if isinstance(value, dict):
        second = [value[k] for k in ("low", "high", "error") if k in value]
        wanted = [value["value"]] + (second if None not in second else [])
        if value["value"] is None:
            wanted = []
    else:
        wanted = [value] if value is not None else []
    if isinstance(value, bool):
        return [] if text == ("yes" if value else "no") else ["not its yes or no"]
    if isinstance(value, str):
        return [] if text == value else [f"not {value!r}"]
    numbers = NUMBER.findall(text)
    if not wanted:
        return [] if text == "–" else ["shows what is not there"]
    if len(numbers) != len(wanted):
        return [f"{len(numbers)} numbers for {wanted}"]
    scale = 100 if "%" in text else 1
    # A figure may be as coarse as its uncertainty, a figure without one has three digits or so.
    size = 0
    if isinstance(value, dict) and len(wanted) > 1:
        size = value["error"] if "error" in value else (value["high"] - value["low"]) / 2
    out = []
    for shown, true in zip(numbers, wanted):
        mantissa, _, power = shown.partition("e")
        unit = 10.0 ** (int(power or 0) - len(mantissa.partition(".")[2]))
        if not abs(float(shown) - scale * true) <= 0.501 * unit + 1e-12 * abs(scale * true):
            out.append(f"shows {shown} for {scale * true}")
        if not math.isclose(float(shown), scale * true, rel_tol=0.06) and unit > scale * size / 5:
            out.append(f"{shown} says too little of {scale * true}")
    return out


def table_faults(browser, report, missing=()):
    """Cells that do not show their figure, and figures that no cell shows."""
    cells = browser.evaluate("""[...document.querySelectorAll('[data-path]')].map(
      n => [n.dataset.path, n.textContent])""")
    out = []
    for path, text in cells:
        out += [f"{path}: {fault} in {text!r}" for fault in shown_faults(text, at(report, path))]
    shown = {path for path, _ in cells}
    out += [f"{path} is shown nowhere" for path in leaves(report)
            if path not in shown and not any(re.fullmatch(m, path) for m in missing)]
    return out
