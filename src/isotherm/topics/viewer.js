"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const find = (id) => document.getElementById(id);
const number = (x, digits) => x.toFixed(digits).replace("-", "\u2212");
const percent = (x) => number(100 * x, x < 0.0995 ? 1 : 0) + " %";
const withInterval = ([mean, low, high], digits, factor = 1) =>
  `${number(factor * mean, digits)} (${number(factor * low, digits)} to ${number(factor * high, digits)})`;
const order = data.topics.map((_, k) => k).sort((a, b) => data.topics[b].share[0] - data.topics[a].share[0]);
let chosen = order[0];

function element(name, attributes, text) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function drawing(name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function topWords(topic, number) {
  return topic.words.slice().sort((a, b) => b.p[0] - a.p[0]).slice(0, number).map((w) => w.word);
}

/** Move circles that would cover the middle of another, where its number is, a little apart. */
function separate(circles) {
  for (let round = 0; round < 200; round++) {
    let moved = false;
    circles.forEach((a, i) => circles.slice(0, i).forEach((b, j) => {
      const dx = a.x - b.x, dy = a.y - b.y, distance = Math.hypot(dx, dy);
      const missing = Math.min(a.radius, b.radius) + 9 - distance;
      if (missing <= 0) return;
      const angle = distance > 1e-6 ? Math.atan2(dy, dx) : i + j;
      const x = ((missing + 0.1) / 2) * Math.cos(angle), y = ((missing + 0.1) / 2) * Math.sin(angle);
      a.x += x; a.y += y; b.x -= x; b.y -= y;
      moved = true;
    }));
    if (!moved) return;
  }
}

function drawMap() {
  const size = 520, margin = 60;
  const svg = drawing("svg", { viewBox: `0 0 ${size} ${size}` });
  const xs = data.topics.map((t) => t.x), ys = data.topics.map((t) => t.y);
  const span = Math.max(Math.max(...xs) - Math.min(...xs), Math.max(...ys) - Math.min(...ys), 1e-9);
  const place = (value, all) =>
    size / 2 + ((value - (Math.max(...all) + Math.min(...all)) / 2) / span) * (size - 2 * margin);
  const most = Math.max(...data.topics.map((t) => t.share[0]));
  const largest = Math.min(52, 150 / Math.sqrt(data.topics.length));
  const circles = order.map((k) => ({
    x: place(data.topics[k].x, xs), y: place(data.topics[k].y, ys),
    radius: Math.max(largest * Math.sqrt(data.topics[k].share[0] / most), 7),
  }));
  separate(circles);
  order.forEach((k, i) => { // the largest first, so that no circle is hidden
    const topic = data.topics[k], { x, y, radius } = circles[i];
    const label = `Topic ${k}, ${percent(topic.share[0])}: ${topWords(topic, 5).join(", ")}`;
    const group = drawing("g", { role: "radio", "aria-label": label, id: `topic-${k}`, tabindex: "-1" });
    group.append(drawing("title", {}, label));
    group.append(drawing("circle", { cx: x, cy: y, r: radius }));
    group.append(drawing("text", { x, y }, String(k)));
    group.addEventListener("click", () => choose(k));
    svg.append(group);
  });
  find("map").append(svg);
}

function drawList() {
  const body = find("list").querySelector("tbody");
  for (const k of order) {
    const topic = data.topics[k], row = element("tr", { id: `row-${k}` });
    const first = element("td"), button = element("button", { type: "button" }, String(k));
    first.append(button);
    row.append(first);
    row.append(element("td", {}, `${withInterval(topic.share, 1, 100)} %`));
    row.append(element("td", {}, withInterval(topic.coherence, 2)));
    row.append(element("td", {}, topWords(topic, 8).join(" ")));
    row.addEventListener("click", () => choose(k));
    body.append(row);
  }
}

function drawWords() {
  const topic = data.topics[chosen], lambda = Number(find("lambda").value);
  find("shown").textContent = lambda.toFixed(1);
  const relevance = (p, overall) => Math.log(p) - (1 - lambda) * Math.log(overall);
  const words = topic.words
    .map((w) => ({ ...w, r: w.p.map((p) => relevance(Math.max(p, 1e-12), w.overall)) }))
    .sort((a, b) => b.r[0] - a.r[0])
    .slice(0, data.num_words);
  const most = Math.max(...words.map((w) => w.p[2]), 1e-12);
  const body = find("words").querySelector("tbody");
  body.replaceChildren();
  for (const w of words) {
    const row = element("tr");
    row.append(element("td", {}, w.word));
    const text = `${percent(w.p[0])}, interval ${percent(w.p[1])} to ${percent(w.p[2])}`;
    const svg = drawing("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": text });
    const at = (p) => (100 * p) / most;
    svg.append(drawing("title", {}, text));
    svg.append(drawing("rect", { class: "bar", x: 0, y: 1, width: at(w.p[0]), height: 8 }));
    svg.append(drawing("line", { class: "interval", x1: at(w.p[1]), x2: at(w.p[2]), y1: 5, y2: 5, "vector-effect": "non-scaling-stroke" }));
    const cell = element("td");
    cell.append(svg);
    row.append(cell);
    row.append(element("td", { class: "share" }, withInterval(w.r, 1)));
    body.append(row);
  }
}

function drawDocuments() {
  const list = find("documents");
  list.replaceChildren();
  for (const d of data.topics[chosen].documents) {
    const item = element("li");
    item.append(element("strong", {}, d.title));
    item.append(element("span", { class: "share" }, ` ${percent(d.share)}`));
    if (d.text) item.append(element("p", { class: "soft" }, d.text));
    list.append(item);
  }
}

function drawGraph() {
  if (!data.layers) return;
  find("layers").hidden = false;
  const rows = Math.max(...data.layers.map((units) => units.length));
  const wide = 330, high = 26, width = wide * data.layers.length, height = high * rows + 50;
  const svg = drawing("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Graph of the units of all layers" });
  svg.style.minWidth = `${Math.min(width, 700)}px`;
  svg.style.maxWidth = `${1.2 * width}px`;
  const y = (layer, i) => 40 + ((i + 0.5) * high * rows) / data.layers[layer].length;
  for (const link of data.links) {
    const size = Math.abs(link.r);
    svg.append(drawing("line", {
      x1: 20 + wide * link.layer, y1: y(link.layer, link.below), x2: 20 + wide * (link.layer + 1), y2: y(link.layer + 1, link.above),
      class: link.r < 0 ? "negative" : "positive", "stroke-width": 0.5 + 8 * size, "stroke-opacity": Math.min(0.25 + size, 0.9),
    }));
  }
  data.layers.forEach((units, layer) => {
    svg.append(drawing("text", { x: 20 + wide * layer, y: 16, "font-weight": 600 }, layer === 0 ? "Topics" : `Layer ${layer + 1}`));
    units.forEach((unit, i) => {
      const group = drawing("g", layer === 0 ? { "data-topic": unit.unit } : {});
      group.append(drawing("title", {}, `unit ${unit.unit}, on in ${percent(unit.on)} of documents`));
      group.append(drawing("circle", { cx: 20 + wide * layer, cy: y(layer, i), r: 4 + 6 * Math.sqrt(unit.on) }));
      group.append(drawing("text", { x: 36 + wide * layer, y: y(layer, i) }, unit.words.join(" ")));
      if (layer === 0) group.addEventListener("click", () => choose(unit.unit));
      svg.append(group);
    });
  });
  find("graph").append(svg);
}

function choose(k) {
  chosen = k;
  const topic = data.topics[k], inMap = find("map").contains(document.activeElement);
  for (const other of order) {
    const node = find(`topic-${other}`), same = other === k;
    node.setAttribute("aria-checked", String(same));
    node.setAttribute("tabindex", same ? "0" : "-1");
    find(`row-${other}`).setAttribute("aria-selected", String(same));
  }
  if (inMap) find(`topic-${k}`).focus();
  for (const group of document.querySelectorAll("#graph g[data-topic]")) {
    group.classList.toggle("chosen", Number(group.dataset.topic) === k);
  }
  find("words-title").textContent = `Topic ${k}: ${topWords(topic, 4).join(", ")}`;
  find("about").textContent = `${withInterval(topic.share, 1, 100)} % of the words`;
  drawWords();
  drawDocuments();
}

function move(step) {
  const i = order.indexOf(chosen);
  choose(order[(i + step + order.length) % order.length]);
}

document.addEventListener("keydown", (event) => {
  const slider = document.activeElement === find("lambda");
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const steps = { ArrowRight: 1, ArrowLeft: -1 };
  if (event.key in steps && !slider) {
    move(steps[event.key]);
    event.preventDefault();
  } else if (event.key === "[" || event.key === "]") {
    find("lambda").value = Number(find("lambda").value) + (event.key === "]" ? 0.1 : -0.1);
    drawWords();
  }
});
find("lambda").addEventListener("input", drawWords);
find("summary").textContent = data.summary;
drawMap();
drawList();
drawGraph();
choose(chosen);
