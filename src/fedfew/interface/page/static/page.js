// Keeps a page up to date: listens for events, loads the page and its figures again, and swaps what changed.
"use strict";

const line = document.getElementById("line");
const dark = matchMedia("(prefers-color-scheme: dark)");
const touch = matchMedia("(pointer: coarse)"); // a finger scrolls, a mouse zooms
const config = { displayModeBar: false, responsive: true };

function say(text, on) {
  if (line.textContent !== text) line.textContent = text;
  line.classList.toggle("on", on);
}

// "var(--k0)" → its colour in the current theme; "band …" and "faint …" are lighter shades of it
function coloured(value, style) {
  if (Array.isArray(value)) return value.map((v) => coloured(v, style));
  if (value && typeof value === "object")
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, coloured(v, style)]));
  const found = typeof value === "string" && /^(band |faint )?var\((--\w+)\)$/.exec(value);
  if (!found) return value;
  const hex = style.getPropertyValue(found[2]).trim();
  if (!found[1]) return hex;
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  return `rgba(${r},${g},${b},${found[1] === "band " ? 0.16 : 0.12})`;
}

let plots = {};
const near = new Set(); // figures in or close to the window; the others are drawn when they come near

function plotOf(figure) {
  let place = figure.querySelector(".plot");
  if (!place) {
    figure.querySelectorAll("svg.chart").forEach((svg) => (svg.closest(".wide-only, .narrow-only") || svg).remove());
    place = document.createElement("div");
    place.className = "plot";
    place.setAttribute("role", "img");
    figure.querySelector("figcaption").after(place);
  }
  return place;
}

function draw() {
  if (typeof Plotly === "undefined") return;
  const style = getComputedStyle(document.documentElement);
  for (const figure of near) {
    const plot = plots[figure.id];
    if (!plot) continue;
    const place = plotOf(figure);
    place.setAttribute("aria-label", `${figure.querySelector("h3").textContent}. ${plot.about}`);
    const words = figure.querySelector(":scope > p");
    if (words) words.textContent = plot.about;
    const layout = { ...coloured(plot.layout, style), dragmode: touch.matches ? false : "zoom" };
    const drawn = Plotly.react(place, coloured(plot.data, style), layout, config);
    drawn.then(() => {
      // the label says what the chart shows; its pieces, and the element where plotly measures text, would only be noise
      for (const noise of [place.firstElementChild, document.getElementById("js-plotly-tester")])
        noise?.setAttribute("aria-hidden", "true");
    });
  }
}

const watcher = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) near[entry.isIntersecting ? "add" : "delete"](entry.target);
    draw();
  },
  { rootMargin: "300px" },
);
document.querySelectorAll("figure").forEach((figure) => watcher.observe(figure));

async function get(address) {
  const answer = await fetch(address, { cache: "no-store" });
  if (!answer.ok) throw new Error(`${address}: ${answer.status}`);
  return answer;
}

async function loadFigures() {
  if (!document.body.dataset.figures) return;
  plots = await (await get(document.body.dataset.figures)).json();
  draw();
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
      watcher.observe(figure);
    } else if (old.querySelector(".plot")) {
      old.querySelector("h3").textContent = figure.querySelector("h3").textContent;
    } else {
      old.replaceChildren(...figure.childNodes);
    }
    before = old || figure;
  }
}

let busy = false;
let again = false;

async function refresh() {
  if (busy) return void (again = true);
  busy = true;
  try {
    await loadPage();
    await loadFigures();
  } catch (error) {
    say(`waiting for the server…`, false);
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
dark.addEventListener("change", draw);
loadFigures().catch(() => say("waiting for the server…", false));
