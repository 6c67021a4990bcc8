"""The page as a Jinja2 template, in a module because Flower's app bundles leave out HTML files."""

PAGE = r"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{{ policy }}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{ title }}</title>
<style>
:root { --ground: #fff; --text: #1c2330; --soft: #5b6575; --line: #dfe3ea; --panel: #f6f7f9; --accent: #2563c9; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #14171c; --text: #e4e7ec; --soft: #9aa4b2; --line: #2f3640; --panel: #1c2129; --accent: #7fb0ff; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--text); font: 15px/1.55 system-ui, sans-serif; }
main { max-width: 1480px; margin: 0 auto; padding: 20px 20px 60px; }
h1 { font-size: 25px; line-height: 1.25; margin: 8px 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 20px; margin: 44px 0 4px; padding-top: 14px; border-top: 2px solid var(--line); }
h3 { font-size: 16px; margin: 26px 0 4px; }
p { margin: 4px 0 10px; max-width: 82ch; }
.soft { color: var(--soft); font-size: 14px; }
.columns { display: grid; gap: 12px 24px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); }
.columns > section { min-width: 0; }
.columns > .wide { grid-column: 1 / -1; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }
.tall { max-height: 720px; overflow-y: auto; }
.fit { width: fit-content; max-width: 100%; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { padding: 5px 8px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child, td.text { text-align: left; }
td.text { white-space: normal; min-width: 220px; }
tbody tr:last-child td { border-bottom: 0; }
thead th { position: sticky; top: 0; background: var(--panel); font-weight: 600; }
thead th button { all: unset; cursor: pointer; font: inherit; }
thead th button:focus-visible { outline: 2px solid var(--accent); }
thead th[aria-sort="ascending"] button::after { content: " \2191"; }
thead th[aria-sort="descending"] button::after { content: " \2193"; }
.spread { color: var(--soft); font-size: 12.5px; display: block; }
select { margin-right: 6px; font: inherit; color: inherit; background: var(--panel); border: 1px solid var(--line); border-radius: 5px;
  padding: 3px 8px; max-width: 100%; }
details { margin: 8px 0; }
summary { cursor: pointer; color: var(--accent); }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: 6px; padding: 10px 14px; overflow-x: auto;
  font-size: 13px; line-height: 1.45; }
code { font-size: 13px; }
.facts td { font-size: 15px; } .facts td:first-child { white-space: normal; }
thead .above th { text-align: center; position: static; border-left: 1px solid var(--line); }
.path { overflow-wrap: anywhere; }
.chart { width: 100%; min-height: 120px; }
nav a { color: var(--accent); margin-right: 16px; }
</style>
</head>
{% macro lines(text) %}{% for line in text.split("\n") %}{% if loop.first %}{{ line }}{% else %}<span class="spread">{{ line }}</span>{% endif %}{% endfor %}{% endmacro %}
{% macro table(shown) %}
{% if shown.title %}<h3>{{ shown.title }}</h3>{% endif %}
{% if shown.text %}<p class="soft">{{ shown.text }}</p>{% endif %}
{% if shown.rows %}
<div class="scroll fit{% if shown.rows | length > 40 %} tall{% endif %}"><table{% if shown.sortable %} class="sortable"{% endif %}>
<thead>
{% if shown.groups %}<tr class="above">{% for head, columns in shown.groups %}<th colspan="{{ columns }}">{{ head }}</th>{% endfor %}</tr>{% endif %}
<tr>{% for head in shown.heads %}<th>{% if shown.sortable %}<button>{{ lines(head) }}</button>{% else %}{{ lines(head) }}{% endif %}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in shown.rows %}<tr>{% for cell in row %}<td{% if shown.heads[loop.index0] == "last reason" %} class="text"{% endif %}>{{ lines(cell) }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{% endif %}
{% if shown.below %}<p class="soft">{{ shown.below }}</p>{% endif %}
{% endmacro %}
{% macro table_section(shown) %}
<section{% if shown.heads | length > 5 %} class="wide"{% endif %}>{{ table(shown) }}</section>
{% endmacro %}
{% macro charts(some) %}
{% for shown in some %}
<section>
<h3>{{ shown.title }}</h3>
<p class="soft">{{ shown.text }}</p>
<div class="chart" data-chart="{{ shown.chart }}"></div>
</section>
{% endfor %}
{% endmacro %}
<body>
<main>
<h1>{{ title }}</h1>
{% if text %}<p>{{ text }}</p>{% endif %}
{% if blocks | length > 1 %}
<nav>{% for block in blocks %}<a href="#part-{{ loop.index }}">{{ block.title }}</a>{% endfor %}</nav>
{% endif %}
{% for block in blocks %}
{% set part = loop.index %}
<article id="part-{{ part }}">
{% if block.title %}<h2>{{ block.title }}</h2>{% endif %}
{% if block.text %}<p>{{ block.text }}</p>{% endif %}
{% for label, began, command in block.made %}<p class="soft">{% if label %}{{ label }}: {% endif %}{{ began }}{% if command %} <code>{{ command }}</code>{% endif %}</p>
{% endfor %}
{% if block.facts or block.first %}
<div class="columns">
{% for shown in block.first %}<section><div class="chart" data-chart="{{ shown.chart }}"></div></section>{% endfor %}
{% if block.facts %}
<section><div class="scroll fit facts"><table><tbody>
{% for row in block.facts %}<tr>{% for each in row %}<td>{{ each }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div></section>
{% endif %}
</div>
{% endif %}
{% if block.command %}<pre>{{ block.command }}</pre>{% endif %}
{% if block.own %}<div class="columns">{{ charts(block.own) }}</div>{% endif %}

<div class="columns">
{{ charts(block.ends) }}
{{ table_section(block.results) if block.results.rows }}
</div>
<p class="soft">{{ block.sentence }}</p>
{% for label, note in block.notes %}<p>{% if label %}{{ label }}: {% endif %}{{ note }}.</p>{% endfor %}
{{ table(block.features) if block.features.rows }}

<div class="columns">
{% if block.curves %}
<section>
<h3>Learning curves</h3>
<p class="soft"><label>Shown: <select data-charts="curves-{{ part }}">{% for curve in block.curves %}<option value="{{ curve.chart }}">{{ curve.title }}</option>{% endfor %}</select></label> {{ block.curves[0].text }}</p>
<div class="chart" id="curves-{{ part }}" data-chart="{{ block.curves[0].chart }}"></div>
</section>
{% endif %}
{{ charts(block.graphs) }}
{{ charts(block.of_methods) }}
</div>

{% if blocks | length > 1 %}<details><summary>Every client, traffic and time</summary>{% endif %}
<div class="columns">
{{ table_section(block.clients) if block.clients.rows }}
{{ table_section(block.costs) }}
{{ table_section(block.absences) }}
</div>

{% if blocks | length > 1 %}</details>{% else %}<h3>Experiment and environment</h3>{% endif %}
{% for run in block.runs %}
<details><summary>{{ run.label }}: experiment</summary><p class="soft path">{{ run.path }}</p><pre>{{ run.toml }}</pre></details>
<details><summary>{{ run.label }}: environment</summary><pre>{{ run.environment | tojson(indent=2) }}</pre></details>
{% endfor %}
</article>
{% endfor %}
</main>
<script type="application/json" id="figures">{{ figures | tojson }}</script>
<script type="text/plain" id="library">{{ library }}</script>
<script>
"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");

function template() {
  const style = getComputedStyle(document.documentElement), colour = name => style.getPropertyValue(name).trim();
  const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--soft"), automargin: true };
  return { layout: { font: { color: colour("--text"), family: "system-ui, sans-serif", size: 12.5 }, xaxis: axis, yaxis: axis,
    hoverlabel: { bgcolor: colour("--panel"), bordercolor: colour("--line"), font: { color: colour("--text") } } } };
}

function draw(place) {
  const figure = figures[Number(place.dataset.chart)];
  Plotly.react(place, figure.data, { ...figure.layout, template: template() }, { responsive: true, displaylogo: false, displayModeBar: false });
}

const drawAll = () => document.querySelectorAll(".chart").forEach(draw);

for (const select of document.querySelectorAll("select[data-charts]")) {
  select.addEventListener("change", () => {
    const place = document.getElementById(select.dataset.charts);
    place.dataset.chart = select.value;
    draw(place);
  });
}

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    heads.forEach(each => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const text = row => row.cells[column].firstChild?.textContent ?? "";
    // Clients without a value are last in both orders.
    const missing = row => text(row) === "-";
    const compare = (a, b) => missing(a) - missing(b) || (up ? 1 : -1) * text(a).localeCompare(text(b), "en", { numeric: true });
    const number = row => parseFloat(text(row));
    const numeric = [...table.tBodies[0].rows].every(row => missing(row) || /^-?[\d.]+(e[+-]?\d+)?$/.test(text(row)));
    const order = numeric ? (a, b) => missing(a) - missing(b) || (up ? 1 : -1) * (number(a) - number(b)) : compare;
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
  }));
}

// Tables that scroll get a note.
function hint(box) {
  const aside = box.scrollWidth > box.clientWidth + 1, down = box.scrollHeight > box.clientHeight + 1;
  let note = box.nextElementSibling;
  if (!note || !note.classList.contains("hint")) {
    note = document.createElement("p");
    note.className = "soft hint";
    box.after(note);
  }
  note.hidden = !aside && !down;
  note.textContent = down ? `This table scrolls: ${box.querySelectorAll("tbody tr").length} rows.` : "This table scrolls sideways.";
}
const hints = () => document.querySelectorAll(".scroll").forEach(hint);
hints();
addEventListener("resize", hints);
document.querySelectorAll("details").forEach(each => each.addEventListener("toggle", hints));

// The chart library is stored compressed; browsers can unpack it since 2023.
(async () => {
  const packed = Uint8Array.from(atob(document.getElementById("library").textContent.trim()), letter => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
  drawAll();
  dark.addEventListener("change", drawAll);
})().catch(error => {
  for (const place of document.querySelectorAll(".chart")) place.textContent = "This browser cannot draw the charts: " + error;
});
</script>
</body>
</html>
"""
