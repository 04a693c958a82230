// Keeps a page up to date: listens for events, loads the page again and swaps what changed; shows values at the pointer.
"use strict";

const line = document.getElementById("line");

function say(text, on) {
  if (line.textContent !== text) line.textContent = text;
  line.classList.toggle("on", on);
}

async function get(address) {
  const answer = await fetch(address, { cache: "no-store" });
  if (!answer.ok) throw new Error(`${address}: ${answer.status}`);
  return answer;
}

// the server renders; the browser only replaces old pieces with new ones
async function loadPage() {
  const page = new DOMParser().parseFromString(await (await get(location.href)).text(), "text/html");
  const ticked = new Set([...document.querySelectorAll("[data-swap] input:checked")].map((i) => i.value));
  const focus = document.activeElement && document.activeElement.closest("[data-swap]") ? document.activeElement.value : null;
  for (const old of document.querySelectorAll("[data-swap]")) {
    const fresh = page.getElementById(old.id);
    if (fresh && fresh.innerHTML !== old.innerHTML) old.replaceChildren(...fresh.childNodes);
  }
  for (const box of document.querySelectorAll("[data-swap] input")) {
    box.checked = ticked.has(box.value);
    if (focus && box.value === focus) box.focus();
  }
  if (page.querySelectorAll(".grid").length !== document.querySelectorAll(".grid").length) return location.reload();
  let before = null;
  for (const figure of page.querySelectorAll("figure")) {
    const old = document.getElementById(figure.id);
    if (!old) {
      // e.g. the first pseudo-labels add charts that did not exist before
      if (before) before.after(figure);
      else document.querySelector(".grid").prepend(figure);
    } else if (old.innerHTML !== figure.innerHTML) {
      old.replaceChildren(...figure.childNodes);
    }
    before = old || figure;
  }
  numbers.clear();
}

let busy = false;
let again = false;

async function refresh() {
  if (busy) return void (again = true);
  busy = true;
  try {
    await loadPage();
  } catch (error) {
    say("waiting for the server…", false);
  }
  busy = false;
  if (again) {
    again = false;
    refresh();
  }
}

const news = new EventSource(document.body.dataset.live);
news.onopen = () => say("live", true);
news.onerror = () => say("connection lost, trying again…", false);
for (const name of ["round", "state", "reset", "runs"]) news.addEventListener(name, refresh);
news.addEventListener("gone", () => {
  news.close();
  say("this run is no longer here", false);
});
news.addEventListener("round", (event) => {
  const record = JSON.parse(event.data);
  say(`live, round ${record.round}`, true);
});

// the values of a chart at the pointer; its numbers are fetched when the pointer first meets it
const numbers = new Map();
const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
document.body.append(tip);

function written(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "percent") return `${(100 * value).toFixed(1)} %`;
  if (unit === "seconds") return `${value.toFixed(2)} s`;
  if (unit === "bytes") {
    const power = Math.min(3, Math.max(0, Math.floor(Math.log10(Math.max(value, 1)) / 3)));
    return `${+(value / 1000 ** power).toPrecision(3)} ${["B", "kB", "MB", "GB"][power]}`;
  }
  return `${+value.toPrecision(4)}`;
}

// x and y in the SVG's units → lines of text; empty where there is nothing
const readers = {
  lines(chart, [low, high, start, end], x) {
    const wanted = low + ((x - start) / (end - start)) * (high - low);
    const found = chart.series.flatMap((series) => {
      const near = series.x.reduce((best, v, i) => (Math.abs(v - wanted) < Math.abs(series.x[best] - wanted) ? i : best), 0);
      const note = series.notes[near] ? `${series.notes[near]}, ` : "";
      return series.x.length ? [[series.x[near], `${note}${series.name}: ${written(series.y[near], chart.unit)}`]] : [];
    });
    return found.length ? [`${chart.x} ${+found[0][0].toPrecision(4)}`, ...found.map(([, text]) => text)] : [];
  },
  bars(chart, [left, step], x) {
    const at = Math.floor((x - left) / step);
    if (!(at in chart.names)) return [];
    return [`${chart.x} ${chart.names[at]}`, ...chart.series.map(([name, values]) => `${name}: ${written(values[at], chart.unit)}`)];
  },
  grid(chart, [left, top, step, tall], x, y) {
    const [column, row] = [Math.floor((x - left) / step), Math.floor((y - top) / tall)];
    const here = (thing) => thing.column === column && thing.row === row;
    const marks = chart.marks.filter(here).map((mark) => mark.note);
    return [...chart.points.filter(here).map((p) => `${p.note}: ${chart.value} ${written(p.value)}`), ...marks];
  },
};

async function showValues(event) {
  const svg = event.target.closest?.("figure svg.chart[data-axes]");
  const link = svg?.closest("figure").querySelector("a[href*='.csv']");
  if (!link) return void (tip.hidden = true);
  const address = link.getAttribute("href").replace(".csv", ".json");
  if (!numbers.has(address)) numbers.set(address, get(address).then((answer) => answer.json()).catch(() => null));
  const chart = await numbers.get(address);
  if (!chart || !svg.isConnected) return void (tip.hidden = true);
  const [kind, ...axes] = svg.dataset.axes.split(" ");
  const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  const lines = readers[kind](chart, axes.map(Number), point.x, point.y);
  tip.hidden = !lines.length;
  tip.textContent = lines.slice(0, 14).join("\n");
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
}

document.addEventListener("pointermove", showValues);
document.addEventListener("pointerdown", showValues);
