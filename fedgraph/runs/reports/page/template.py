"""The page as a Jinja2 template: in a module, because app bundles of Flower leave out HTML files."""

PAGE = r"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
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
{% macro sections(some, named) %}
{% for shown in some %}
<section>
<h3>{{ shown.title }}{% if named %} ({{ shown.run }}){% endif %}</h3>
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
{% if not block.command %}
{% for label, began, command in block.made %}<p class="soft">{% if label %}{{ label }}: {% endif %}{{ began }}{% if command %} <code>{{ command }}</code>{% endif %}</p>
{% endfor %}
{% endif %}
{% if block.facts or block.first is not none %}
<div class="columns">
{% if block.first is not none %}<section><div class="chart" data-chart="{{ block.first }}"></div></section>{% endif %}
{% if block.facts %}
<section><div class="scroll fit facts"><table><tbody>
{% for row in block.facts %}<tr>{% for each in row %}<td>{{ each }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div></section>
{% endif %}
</div>
{% endif %}
{% if block.command %}<pre>{{ block.command }}</pre>{% endif %}
{% if block.shown | rejectattr("run") | list %}<div class="columns">{{ sections(block.shown | rejectattr("run") | list, false) }}</div>{% endif %}

<div class="columns">
<section>
{% if block.strips is not none %}
<h3>{{ "Clients at the end: " if block.many else "At the end: " }}{{ block.telling }}</h3>
{% if block.many %}<p class="soft">Every point is a client; the dashed line and the number are their mean.</p>{% endif %}
<div class="chart" data-chart="{{ block.strips }}"></div>
{% endif %}
{% if block.columns | length > 4 %}</section><section>{% endif %}
<p class="soft">{{ block.sentence }}</p>
{% for label, note in block.notes %}<p>{% if label %}{{ label }}: {% endif %}{{ note }}.</p>{% endfor %}
</section>
{% if block.results %}
<section{% if block.columns | length > 4 %} class="wide"{% endif %}>
<h3>Results on {{ block.split }} data</h3>
<div class="scroll fit results"><table>
{% if block.columns | length == 1 %}
<thead><tr><th>metric</th><th>mean ± std</th><th>worst 5 %</th><th>best 5 %</th></tr></thead>
<tbody>
{% for metric, values in block.results %}
<tr><td>{{ metric }}</td><td>{{ values[0].mean }}</td><td>{{ values[0].worst }}</td><td>{{ values[0].best }}</td></tr>
{% endfor %}
{% else %}
<thead><tr><th>metric</th>{% for head in block.columns %}<th>{{ head.name }}{% if head.remark %}<span class="spread">{{ head.remark }}</span>{% endif %}</th>{% endfor %}</tr></thead>
<tbody>
{% for metric, values in block.results %}
<tr><td>{{ metric }}</td>{% for value in values %}<td>{{ value.mean }}{% if value.range %}<span class="spread">{{ value.range }}</span>{% endif %}</td>{% endfor %}</tr>
{% endfor %}
{% endif %}
</tbody></table></div>
<p class="soft">Mean and standard deviation over clients{{ ", and the means of" if block.columns | length == 1 else "; below, the means of" }} the worst and of the best 5 % of them.{% if block.columns | length == 1 and block.columns[0].remark %} {{ block.columns[0].remark }}.{% endif %}</p>
</section>
{% endif %}
</div>
{% if block.features.rows %}
<h3>Feature by feature</h3>
<div class="scroll fit"><table class="sortable">
<thead><tr><th><button>feature</button></th>{% for head in block.features.measures %}<th><button>{{ head }}</button></th>{% endfor %}</tr></thead>
<tbody>
{% for feature, cells in block.features.rows %}
<tr><td>{{ feature }}</td>{% for values in cells %}<td>{{ values[0] }}{% for value in values[1:] %}<span class="spread">{{ value }}</span>{% endfor %}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
<p class="soft">Means over clients{% if block.columns | length > 1 %}, from above: {{ block.columns | map(attribute="name") | join(", ") }}{% endif %}.</p>
{% endif %}

<div class="columns">
{% if block.curves %}
<section>
<h3>Learning curves</h3>
<p class="soft"><label>Shown: <select data-charts="curves-{{ part }}">{% for curve in block.curves %}<option value="{{ curve.chart }}">{{ curve.name }}</option>{% endfor %}</select></label>{% if block.many %}
 Mean over clients, and the middle half of them.{% endif %}</p>
<div class="chart" id="curves-{{ part }}" data-chart="{{ block.curves[0].chart }}"></div>
</section>
{% endif %}
{% for graph in block.graphs %}
<section>
<h3>{{ graph.title }}</h3>
<p class="soft">{{ graph.text }}{% if graph.left_out %}; the {{ graph.left_out }} weakest edges are not drawn{% endif %}.</p>
<div class="chart" data-chart="{{ graph.chart }}"></div>
</section>
{% endfor %}
{{ sections(block.shown | selectattr("run") | list, block.labels | length > 1) }}
</div>

{% if blocks | length > 1 %}<details><summary>Every client, traffic and time</summary>{% endif %}
<div class="columns">
{% if block.clients.rows %}
<section{% if block.clients.heads | length > 5 %} class="wide"{% endif %}>
<h3>Every client</h3>
<p class="soft">{% if block.labels | length > 1 %}{{ block.telling }} of each client. {% endif %}Click a heading to sort.{% if block.clients.left_out %} {{ block.clients.left_out }} more clients are in summary.json.{% endif %}</p>
<div class="scroll fit{% if block.clients.rows | length > 40 %} tall{% endif %}"><table class="sortable">
<thead>
{% if block.clients.metrics | length > 1 %}
<tr class="above"><th></th>{% if block.clients.groups %}<th></th>{% endif %}{% for metric, columns in block.clients.metrics %}<th colspan="{{ columns }}">{{ metric }}</th>{% endfor %}</tr>
{% endif %}
<tr><th><button>client</button></th>{% for head in block.clients.heads %}<th><button>{{ head }}</button></th>{% endfor %}</tr></thead>
<tbody>
{% for client, values in block.clients.rows %}
<tr><td>{{ client }}</td>{% for value in values %}<td>{{ value }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
</section>
{% endif %}
<section>
<h3>{{ "Lost clients, traffic and time" if block.lost else "Traffic and time" }}</h3>
<div class="scroll"><table>
<thead><tr><th></th>{% for label in block.labels %}<th>{{ label }}</th>{% endfor %}</tr></thead>
<tbody>{% for name, values in block.costs.items() %}<tr><td>{{ name }}</td>{% for value in values %}<td>{{ value }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
</section>
<section>
<h3>Absent clients</h3>
{% if block.absences %}
<div class="scroll"><table>
<thead><tr><th>client</th>{% if block.labels | length > 1 %}<th>run</th>{% endif %}<th>rounds</th><th>last reason</th></tr></thead>
<tbody>{% for label, client, rounds, reason in block.absences %}<tr><td>{{ client }}</td>{% if block.labels | length > 1 %}<td>{{ label }}</td>{% endif %}<td>{{ rounds }}</td><td class="text">{{ reason }}</td></tr>
{% endfor %}</tbody></table></div>
{% else %}
<p class="soft">Every client answered every time.</p>
{% endif %}
</section>
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
    // A client without a value stands last, whichever way the others are sorted.
    const missing = row => text(row) === "-";
    const compare = (a, b) => missing(a) - missing(b) || (up ? 1 : -1) * text(a).localeCompare(text(b), "en", { numeric: true });
    const number = row => parseFloat(text(row));
    const numeric = [...table.tBodies[0].rows].every(row => missing(row) || /^-?[\d.]+(e[+-]?\d+)?$/.test(text(row)));
    const order = numeric ? (a, b) => missing(a) - missing(b) || (up ? 1 : -1) * (number(a) - number(b)) : compare;
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
  }));
}

// A table that does not show all it has says so.
function hint(box) {
  const aside = box.scrollWidth > box.clientWidth + 1, down = box.scrollHeight > box.clientHeight + 1;
  let said = box.nextElementSibling;
  if (!said || !said.classList.contains("hint")) {
    said = document.createElement("p");
    said.className = "soft hint";
    box.after(said);
  }
  said.hidden = !aside && !down;
  said.textContent = down ? `This table scrolls: ${box.querySelectorAll("tbody tr").length} rows.` : "This table scrolls sideways.";
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
