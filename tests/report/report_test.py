"""The report of headq diagnose in a headless Chromium.

Usage: report_test.py HEADQ PAGE_OF TINY_CASE CHROMIUM [UNITTEST_ARGUMENT...]
"""

import copy
import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import checks
from browser import Browser

HEADQ = PAGE_OF = TINY_CASE = CHROMIUM = None
# What the page says in other words than a figure's own.
SAID_OTHERWISE = (r"experiments\.\w+\.n_heads", r"experiments\.metrics\.\w+\.harm",
                  r"experiments\.deployability\.base", r"experiments\.direction\.n_heads")
DESKTOP, PHONE = 1280, 390


def run(*args, stdin=None):
    return subprocess.run(args, input=stdin, capture_output=True, check=True, timeout=300).stdout


def put(report, path, value):
    """Sets what a path names."""
    parent, _, last = path.rpartition(".")
    node = checks.at(report, parent) if parent else report
    node[int(last) if isinstance(node, list) else last] = value


def mean(value, error):
    return {"value": value, "error": error, "n": 6}


def full_model():
    """Experiment 6 as the command writes it, with planted figures."""
    def row(kv, role, rank, bits, kld, removed):
        none = {"value": None, "error": None}
        gone = none if removed is None else {"value": removed, "error": 0.02}
        nominal = None if role == "reference" else 2
        return {"kv": kv, "role": role, "bits": nominal, "rank": rank, "true_bits": bits + 0.4,
                "packed_bits": bits, "ppl": {"value": 20 + kld, "error": 0.21},
                "ppl_ratio": {"value": 1 + kld, "error": 0.012}, "excess_ppl_removed": gone,
                "kld": {"value": kld, "error": kld / 20}, "kld_removed": gone,
                "top1": {"value": 0.91, "error": 0.011}}
    return {
        "n_ctx": 256, "n_chunks": 2, "n_scored": 256, "window": 32, "sinks": 4,
        "dense": {"ppl": {"value": 19.8, "error": 0.2}, "true_bits": 16.0},
        "keys_only": [
            row("kivi2/dense", "base", None, 2.5, 0.2, None),
            row("kivi2+hq4x4/dense", "side_code", 4, 2.78, 0.08, 0.6),
            row("kivi2w9/dense", "wide_base", 4, 2.78, 0.16, 0.2),
            row("kivi2+hq4x4@random/dense", "random_basis", 4, 2.78, 0.19, 0.05),
            row("kivi2-hq4x4/dense", "wrong_sign", 4, 2.78, 0.5, -1.5)],
        "full_kv": [
            row("kivi2", "base", None, 2.5, 0.3, None),
            row("kivi2+hq4x4/kivi2", "side_code", 4, 2.64, 0.1, 0.66),
            row("kivi2/kivi2+a2", "paid_tokens", None, 2.77, 0.22, 0.27),
            row("kivi2/kivi2+a2@random", "random_tokens", None, 2.77, 0.28, 0.07),
            row("nib2", "nib", None, 2.0, 0.02, 0.93)],
        "llama_cpp": [
            row("f16", "reference", None, 16.0, 0.0004, None),
            row("q8_0", "reference", None, 8.5, 0.0038, None),
            row("q4_0", "reference", None, 4.5, 0.045, None)]}


class ReportTest(unittest.TestCase):
    """One diagnosis of a tiny model, one browser, one page for each test."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="headq-report-")
        folder = Path(cls.folder.name)
        model, text = run(TINY_CASE, folder).decode().splitlines()
        cls.page = folder / "report.html"
        json_file = folder / "report.json"
        run(HEADQ, "diagnose", "-m", model, "-f", text, "-c", "256", "--queries", "8", "-t", "2",
            "--chunks", "2", "--calibration-chunks", "2", "-o", cls.page, "-o", json_file)
        cls.report = json.loads(json_file.read_bytes())
        cls.browser = Browser(CHROMIUM)

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.folder.cleanup()

    def page_of(self, report):
        path = Path(self.folder.name) / "planted.html"
        path.write_bytes(run(PAGE_OF, stdin=json.dumps(report).encode()))
        return path

    def changed(self, changes):
        report = copy.deepcopy(self.report)
        for path, value in changes.items():
            put(report, path, value)
        return report

    def assert_none(self, faults):
        self.assertEqual(faults, [])

    def assert_found(self, faults, text):
        self.assertTrue(any(text in f for f in faults), f"{text!r} is not in {faults}")

    def text(self):
        return self.browser.evaluate("document.body.innerText")

    # --- What holds of a page

    def test_opens_without_a_message_or_a_request(self):
        for scheme in ("light", "dark"):
            self.browser.open(self.page, scheme=scheme)
            self.assert_none(checks.event_faults(self.browser, self.page.resolve()))
            self.assertIn("In short", self.text())

    def test_every_chart_is_drawn_at_every_width(self):
        for width in (DESKTOP, 800, PHONE):
            self.browser.open(self.page, width)
            self.assert_none(checks.drawing_faults(self.browser))
            self.assert_none(checks.count_faults(self.browser, self.report))
            self.assert_none(checks.overlap_faults(self.browser))

    def test_marks_leave_ink(self):
        for scheme in ("light", "dark"):
            self.browser.open(self.page, scheme=scheme)
            self.assert_none(checks.paint_faults(self.browser))

    def test_fits_a_phone_also_unfolded(self):
        for width in (PHONE, 320):
            self.browser.open(self.page, width)
            self.assert_none(checks.overflow_faults(self.browser))
            self.browser.evaluate("document.querySelectorAll('details').forEach(d => "
                                  "{ d.open = true; })")
            self.browser.settle()
            self.assert_none(checks.overflow_faults(self.browser))

    def test_both_themes_can_be_read(self):
        grounds = set()
        for scheme in ("light", "dark"):
            self.browser.open(self.page, scheme=scheme)
            self.browser.evaluate("document.querySelectorAll('details').forEach(d => "
                                  "{ d.open = true; })")
            self.assert_none(checks.contrast_faults(self.browser))
            self.assert_none(checks.mark_contrast_faults(self.browser))
            grounds.add(self.browser.evaluate("getComputedStyle(document.body).backgroundColor"))
        self.assertEqual(len(grounds), 2)

    def test_has_headings_captions_and_names(self):
        self.browser.open(self.page)
        self.assert_none(checks.structure_faults(self.browser))

    def test_tables_show_every_figure_of_the_document(self):
        self.browser.open(self.page)
        self.assert_none(checks.table_faults(self.browser, self.report, SAID_OTHERWISE))

    def test_charts_follow_the_window(self):
        self.browser.open(self.page, DESKTOP)
        self.browser.resize(PHONE)
        self.browser.settle()
        self.assert_none(checks.overflow_faults(self.browser))
        self.assert_none(checks.count_faults(self.browser, self.report))

    def test_bit_rates_can_be_chosen(self):
        self.browser.open(self.page)
        self.browser.evaluate("""(() => { const s = document.querySelector('select');
          s.value = '3.00'; s.dispatchEvent(new Event('change')); })()""")
        m = self.report["experiments"]["metrics"]
        kept = [i for i, c in enumerate(m["key_codecs"]) if abs(c["bits"] - 3) < 0.005]
        n = sum(c in kept for c in m["key_cells"]["codec"])
        self.assertGreater(n, 0)
        marks = checks.marks_by_figure(self.browser)
        self.assertEqual(marks["Keys: storage error against harm"], (0, n, 0))
        self.assertEqual(marks["Keys: Fisher variance against harm"], (0, n, 0))
        self.assertGreater(marks["Values: storage error against harm"][1], 0)

    def test_a_point_is_named_under_the_pointer(self):
        self.browser.open(self.page)
        self.browser.evaluate("""(() => {
          const svg = document.querySelector('.marks').ownerSVGElement;
          svg.scrollIntoView({block: 'center'});
          const path = svg.querySelector('.marks').getAttribute('d');
          const [, x, y] = /M([\\d.]+),([\\d.]+)/.exec(path);
          const frame = svg.getBoundingClientRect();
          svg.dispatchEvent(new PointerEvent('pointermove', {
            clientX: frame.left + +x, clientY: frame.top + +y}));
        })()""")
        tip = self.browser.evaluate("document.querySelector('.tip:not([hidden])')?.innerText")
        self.assertRegex(tip or "", r"layer \d+, head \d+, \w+")

    def test_prints_unfolded_and_whole(self):
        self.browser.open(self.page)
        pdf = Path(self.folder.name) / "report.pdf"
        self.browser.pdf(pdf)
        self.assertGreater(len(re.findall(rb"/Type\s*/Page\b", pdf.read_bytes())), 3)
        self.browser.evaluate("dispatchEvent(new Event('beforeprint'))")
        closed = "document.querySelectorAll('main details:not([open])').length"
        self.assertEqual(self.browser.evaluate(closed), 0)
        self.browser.evaluate("dispatchEvent(new Event('afterprint'))")
        self.assertGreater(self.browser.evaluate(closed), 0)

    def test_tables_copy_as_tabs(self):
        self.browser.open(self.page)
        text = self.browser.evaluate("asTabs(document.querySelector('table'))")
        rows = [line.split("\t") for line in text.split("\n")]
        self.assertEqual(rows[0][:2], ["measure", "overall"])
        self.assertEqual(len({len(row) for row in rows}), 1)

    # --- Documents that no kind model makes

    def test_names_are_text_and_nothing_else(self):
        names = ["</script><script>window.hacked = 1</script>",
                 "<img src=x onerror='window.hacked = 1'>", "<!--<script>", "\"'&amp;\u2028]]>",
                 "{{policy}}{{script}}", "${window.hacked = 1}", "\\u003cb>"]
        for name in names:
            report = self.changed({"model": name, "text": name,
                                   "experiments.metrics.key_codecs.0.codec": name,
                                   "experiments.null_space.rows.0.codec": name,
                                   "experiments.direction.right.codec": name})
            page = self.page_of(report)
            self.browser.open(page)
            self.assert_none(checks.event_faults(self.browser, page.resolve()))
            self.assertIsNone(self.browser.evaluate("window.hacked"))
            self.assertEqual(
                self.browser.evaluate("document.querySelector('h1').textContent"), name)
            self.assertEqual(self.browser.evaluate("document.querySelectorAll('img').length"), 0)
            self.assertEqual(self.browser.evaluate("document.scripts.length"), 3)
            self.assert_none(checks.table_faults(self.browser, report, SAID_OTHERWISE))

    def test_a_model_of_any_file_name_can_be_diagnosed(self):
        folder = Path(self.folder.name)
        model, text = run(TINY_CASE, folder).decode().splitlines()
        hostile = folder / "<img src=x onerror=window.hacked=1>\"&.gguf"
        hostile.write_bytes(Path(model).read_bytes())
        page = folder / "hostile.html"
        run(HEADQ, "diagnose", "-m", hostile, "-f", text, "-c", "256", "--queries", "2",
            "--heads", "1", "--chunks", "1", "--calibration-chunks", "1", "-o", page)
        self.browser.open(page)
        self.assert_none(checks.event_faults(self.browser, page.resolve()))
        self.assertEqual(self.browser.evaluate("document.querySelector('h1').textContent"),
                         hostile.name)
        # One head leaves no intervals over heads: charts and words do without.
        self.assert_none(checks.structure_faults(self.browser))

    def test_no_script_but_its_own_runs(self):
        path = Path(self.folder.name) / "tampered.html"
        path.write_text(self.page.read_text(encoding="utf-8").replace(
            "</body>", "<script>window.hacked = 1</script>"
            "<img src=x onerror='window.hacked=1'></body>"),
            encoding="utf-8")
        self.browser.open(path)
        self.assertIsNone(self.browser.evaluate("window.hacked"))
        self.assert_found(checks.event_faults(self.browser, path.resolve()), "Content Security")

    def test_what_has_no_value_is_a_dash(self):
        def emptied(node):
            if isinstance(node, dict):
                if "value" in node:
                    return {k: v if k == "n" else None for k, v in node.items()}
                return {k: emptied(v) for k, v in node.items()}
            return [emptied(x) for x in node] if isinstance(node, list) else node
        report = emptied(self.report)
        page = self.page_of(report)
        self.browser.open(page)
        self.assert_none(checks.event_faults(self.browser, page.resolve()))
        self.assert_none(checks.table_faults(self.browser, report, SAID_OTHERWISE))
        self.assertNotRegex(self.text(), r"NaN|undefined|null")
        verdicts = self.browser.evaluate(
            "[...document.querySelectorAll('.claims li')].map(n => n.dataset.verdict)")
        self.assertEqual(set(verdicts), {"open"})

    def test_experiments_may_be_missing_or_new(self):
        report = copy.deepcopy(self.report)
        for name in ("null_space", "counterexamples", "route_flips"):
            del report["experiments"][name]
        report["experiments"]["tides"] = {"moon": {"value": 0.123, "error": 0.004, "n": 3}}
        page = self.page_of(report)
        self.browser.open(page)
        self.assert_none(checks.event_faults(self.browser, page.resolve()))
        self.assert_none(checks.structure_faults(self.browser))
        self.assert_none(checks.table_faults(self.browser, report, SAID_OTHERWISE))

    def test_the_whole_model_has_its_place(self):
        report = copy.deepcopy(self.report)
        report["experiments"]["full_model"] = full_model()
        page = self.page_of(report)
        for width in (DESKTOP, PHONE):
            self.browser.open(page, width)
            self.assert_none(checks.event_faults(self.browser, page.resolve()))
            self.assert_none(checks.table_faults(self.browser, report, SAID_OTHERWISE))
            self.assert_none(checks.drawing_faults(self.browser))
            self.assert_none(checks.overflow_faults(self.browser))
            self.assert_none(checks.overlap_faults(self.browser))
            marks = checks.marks_by_figure(self.browser)
            self.assertEqual(marks["Keys and values packed: divergence against bits"], (8, 0, 0))
            self.assertEqual(marks["Keys and values packed: perplexity against bits"], (8, 0, 0))
            self.assertEqual(marks["Keys alone: divergence against bits"], (6, 0, 0))
        merit = self.browser.evaluate("document.querySelector('.figure-of-merit').textContent")
        self.assertEqual(merit, "nib2")
        self.assertEqual(
            self.verdict("full_model", {"experiments.full_model": full_model()}), "yes")
        report["experiments"]["full_model"]["keys_only"][2]["kld_removed"] = mean(0.9, 0.01)
        self.assertEqual(self.verdict("full_model", {
            "experiments.full_model": report["experiments"]["full_model"]}), "no")

    # --- What the summary says follows the figures

    def verdict(self, claim, changes):
        self.browser.open(self.page_of(self.changed(changes)))
        return self.browser.evaluate(
            f"document.querySelector('[data-claim={claim}]').dataset.verdict")

    def test_verdicts_follow_the_figures(self):
        def interval(low, high):
            return {"value": (low + high) / 2, "low": low, "high": high}
        gain, value_gain = (
            f"experiments.metrics.{t}.gain.equal_bits" for t in ("key_kl", "values"))
        right, wrong = (f"experiments.direction.{s}.kl_ratio" for s in ("right", "wrong"))
        uniform, random = (
            f"experiments.a2_policy.paid_over.{i}.output_error_ratio" for i in (0, 1))
        for claim, changes, expected in (
                ("a2_policy", {uniform: interval(0.7, 0.9), random: interval(0.3, 0.5)}, "yes"),
                ("a2_policy", {uniform: interval(0.7, 1.1), random: interval(0.3, 0.5)}, "open"),
                ("a2_policy", {uniform: interval(1.1, 1.3), random: interval(0.3, 0.5)}, "no"),
                ("metrics", {gain: interval(0.5, 0.7), value_gain: interval(0.1, 0.3)}, "yes"),
                ("metrics", {gain: interval(-0.1, 0.7), value_gain: interval(0.1, 0.3)}, "open"),
                ("metrics", {gain: interval(0.5, 0.7), value_gain: interval(-0.3, -0.1)}, "no"),
                ("direction", {right: mean(0.5, 0.1), wrong: mean(2.0, 0.4)}, "yes"),
                ("direction", {right: mean(0.5, 0.3), wrong: mean(2.0, 0.4)}, "open"),
                ("direction", {right: mean(1.5, 0.1), wrong: mean(0.6, 0.1)}, "no")):
            self.assertEqual(self.verdict(claim, changes), expected, (claim, changes))

    def test_the_policy_is_the_best_of_those_measured(self):
        report = copy.deepcopy(self.report)
        del report["experiments"]["full_model"]  # which would decide
        codecs = report["experiments"]["metrics"]["key_codecs"]
        for codec in codecs:
            codec["kl"]["value"] = 1.0
        cheap = next(c for c in codecs if c["codec"] == "token2c")
        cheap["kl"]["value"] = 0.5
        dear = next(c for c in codecs if c["codec"] == "kivi4")
        dear["kl"]["value"] = 0.1
        self.browser.open(self.page_of(report))
        merit = self.browser.evaluate("document.querySelector('.figure-of-merit').textContent")
        self.assertRegex(merit, r"^token2c/")

    # --- The checks find what is planted

    def test_checks_find_a_broken_chart(self):
        report = copy.deepcopy(self.report)
        del report["experiments"]["direction"]["none"]["kl"]
        page = self.page_of(report)
        self.browser.open(page)
        self.assert_found(checks.event_faults(self.browser, page.resolve()), "exception")
        self.assert_found(checks.structure_faults(self.browser), "failed")
        self.assert_found(checks.count_faults(self.browser, self.report),
                          "Attention with the correction")
        for plant, faults, text in (
                ("document.querySelector('.marks').remove()",
                 lambda: checks.count_faults(self.browser, self.report), "storage error"),
                ("document.querySelectorAll('.cell').forEach(c => c.remove())",
                 lambda: checks.drawing_faults(self.browser), "no marks"),
                ("document.querySelector('.plot .mark').setAttribute('transform', "
                 "'translate(NaN,1)')",
                 lambda: checks.drawing_faults(self.browser), "NaN"),
                ("document.querySelector('.plot .mark').setAttribute('transform', "
                 "'translate(-90,1)')",
                 lambda: checks.drawing_faults(self.browser), "outside"),
                ("document.querySelectorAll('.axis text')[1].setAttribute('dx', 3000)",
                 lambda: checks.overflow_faults(self.browser), "out of the window"),
                ("document.querySelectorAll('.axis text').forEach(t => t.setAttribute('x', 9))",
                 lambda: checks.overlap_faults(self.browser), " on ")):
            self.browser.open(self.page)
            self.assert_none(faults())
            self.browser.evaluate(plant)
            self.assert_found(faults(), text)
        self.browser.open(self.page)
        checks.add_style(self.browser, ".marks { opacity: 0 }")
        self.assert_found(checks.paint_faults(self.browser), "Keys: storage error")

    def test_checks_find_a_page_that_cannot_be_read(self):
        for plant, faults, text in (
                ("document.querySelector('h2').style.color = '#bbb'",
                 lambda: checks.contrast_faults(self.browser), "In short"),
                ("document.querySelector('svg .axis text').style.fill = '#ddd'",
                 lambda: checks.contrast_faults(self.browser), "221, 221"),
                ("document.querySelector('.plot .mark').style.fill = '#eee'",
                 lambda: checks.mark_contrast_faults(self.browser), "238"),
                ("document.querySelector('main').style.minWidth = '2000px'",
                 lambda: checks.overflow_faults(self.browser), "wide"),
                ("document.querySelector('caption').remove()",
                 lambda: checks.structure_faults(self.browser), "caption"),
                ("document.querySelector('.plot > svg').removeAttribute('aria-labelledby')",
                 lambda: checks.structure_faults(self.browser), "unnamed")):
            self.browser.open(self.page)
            self.assert_none(faults())
            self.browser.evaluate(plant)
            self.assert_found(faults(), text)

    def test_checks_find_a_wrong_figure_and_a_request(self):
        def faults():
            return checks.table_faults(self.browser, self.report, SAID_OTHERWISE)
        self.browser.open(self.page)
        self.browser.evaluate(
            "document.querySelector('td[data-path]').textContent = '0.5 [0.4, 0.6]'")
        self.assert_found(faults(), "for")
        self.browser.open(self.page)
        self.browser.evaluate("document.querySelector('td[data-path]').remove()")
        self.assert_found(faults(), "shown nowhere")
        self.browser.open(self.page)
        self.browser.evaluate("console.log('hello')")
        self.browser.evaluate("fetch('http://127.0.0.1:9/x').catch(() => 0)")
        self.browser.settle()
        found = checks.event_faults(self.browser, self.page.resolve())
        self.assert_found(found, "console")
        self.assert_found(found, "127.0.0.1")


class ShownFaultsTest(unittest.TestCase):
    """The comparison of a text with a figure."""

    def test_takes_what_is_right(self):
        for text, value in (("0.632", 0.6324), ("63.2 %", 0.6324), ("3.59e-7", 3.5944e-7),
                            ("0.0632 ± 0.0084", {"value": 0.06321, "error": 0.00838, "n": 9}),
                            ("0.63 [0.52, 0.73]", {"value": 0.629, "low": 0.522, "high": 0.731}),
                            ("0.63", {"value": 0.629, "low": None, "high": None}),
                            ("–", {"value": None, "low": None, "high": None}), ("12", 12)):
            self.assertEqual(checks.shown_faults(text, value), [], text)

    def test_finds_what_is_wrong(self):
        for text, value in (("0.631", 0.6324), ("0.632 %", 0.6324), ("3.59e-6", 3.5944e-7),
                            ("0.0632 ± 0.0083", {"value": 0.06321, "error": 0.00838, "n": 9}),
                            ("0.63", {"value": 0.629, "low": 0.522, "high": 0.731}),
                            ("0", {"value": None, "low": None, "high": None}), ("1", 1.4),
                            ("–", 0.3)):
            self.assertNotEqual(checks.shown_faults(text, value), [], text)


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__.strip())
    HEADQ, PAGE_OF, TINY_CASE, CHROMIUM = sys.argv[1:5]
    if not Path(CHROMIUM).is_file():
        sys.exit(f"no browser at {CHROMIUM}; scripts/packages --tests installs one")
    unittest.main(argv=sys.argv[:1] + sys.argv[5:])
