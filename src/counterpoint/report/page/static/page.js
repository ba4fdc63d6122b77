// The page: what is shown, and what mouse, keys, fields and buttons do to it.
const COLOURS = ["ground", "panel", "line", "ink", "quiet", "focus", "compute", "compute-ink", "hidden", "hidden-ink",
  "exposed", "exposed-ink", "copy", "copy-ink", "memory", "memory-before", "match", "band"];
const LISTED = 250;
const part = id => document.getElementById(id);
const data = readData();
const scene = { view: data.views[0], from: 0, to: 1, plan: null, colours: {}, selected: null, searching: false };
const canvas = part("timeline"), overview = part("overview"), tip = part("tip");
let found = [], current = -1, waiting = false;

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

// -- showing ----------------------------------------------------------------------------------------------------------

function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    const width = canvas.parentElement.clientWidth;
    scene.plan = layOut(scene.view, width);
    drawTimeline(canvas, scene);
    drawOverview(overview, scene, width);
    // For whoever drives the page by program, and for its tests.
    Object.assign(canvas.dataset, { from: scene.from, to: scene.to, selected: scene.selected ? scene.selected.name : "" });
  });
}

function show(from, to) {
  const end = scene.view.end, least = Math.min(end, Math.max(end * 1e-7, 1e-3));
  const length = Math.min(end * 1.02, Math.max(least, to - from));
  const first = Math.max(-length * 0.02, Math.min(from, end + length * 0.02 - length));
  Object.assign(scene, { from: first, to: first + length });
  redraw();
}

const fit = () => show(0, scene.view.end);

// Keys and buttons zoom about what is selected, if it is in sight.
function center() {
  const span = scene.selected, middle = span ? (span.start + span.end) / 2 : -1;
  return middle > scene.from && middle < scene.to ? middle : (scene.from + scene.to) / 2;
}

function zoom(times, around = center()) {
  show(around - (around - scene.from) / times, around + (scene.to - around) / times);
}

function move(share) {
  const step = (scene.to - scene.from) * share;
  show(scene.from + step, scene.to + step);
}

function reveal(span) {
  const length = Math.max(span.end - span.start, scene.view.end * 1e-6), middle = (span.start + span.end) / 2;
  const wide = scene.to - scene.from;
  if (length > wide * 0.9 || length < wide / 40) show(middle - length * 6, middle + length * 6);
  else if (span.start < scene.from || span.end > scene.to) show(middle - wide / 2, middle + wide / 2);
  else redraw();
}

function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of COLOURS) scene.colours[name] = style.getPropertyValue(`--${name}`).trim();
  redraw();
}

// -- one event ----------------------------------------------------------------------------------------------------------

function facts(span) {
  const rows = span.origins.map(origin => scene.view.byOrigin.get(origin)).filter(Boolean);
  const list = [["time", `${timeText(span.end - span.start)}, from ${timeText(span.start)} to ${timeText(span.end)}`]];
  if (span.exposed > 0) list.push(["exposed", timeText(span.exposed), "strong"]);
  if (span.bytes >= 0) list.push(["bytes", bytesText(span.bytes)]);
  if (span.kind) list.push(["kind", span.kind]);
  list.push(["run", `${span.run.label}, ${span.run.lanes[span.lane].name}`]);
  for (const row of rows.slice(0, 3)) {
    list.push([rows.length > 1 ? row.origin : "verdict", row.verdict]);
    if (row.why) list.push(["reason", row.why]);
    if (row.blocking) list.push(["in the way", row.blocking]);
    if (row.hint) list.push(["to change", row.hint]);
  }
  if (rows.length > 3) list.push(["", `and ${rows.length - 3} more collectives`]);
  if (span.module) list.push(["module", span.module]);
  if (span.source) list.push(["source", span.source]);
  return list;
}

function describe(box, span) {
  const list = element("dl");
  for (const [name, value, className] of facts(span)) list.append(element("dt", name), element("dd", value, className));
  box.replaceChildren(element("strong", span.name), list);
}

function select(span) {
  scene.selected = span;
  part("details").hidden = !span;
  if (span) { describe(part("details"), span); reveal(span); } else redraw();
}

function spanAt(event) {
  const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  const row = scene.plan && scene.plan.rows.find(one => one.sort === "lane" && y >= one.top && y < one.top + one.height);
  if (!row || x < scene.plan.left) return null;
  const time = timeAt(x), near = 2.5 * (scene.to - scene.from) / (scene.plan.width - scene.plan.left);
  const spans = row.lane.spans;
  let best = null, distance = Infinity;
  for (let i = firstAfter(spans, time - near); i < spans.length && spans[i].start <= time + near; i++) {
    const off = Math.max(0, spans[i].start - time, time - spans[i].end);
    if (off < distance) [best, distance] = [spans[i], off];
  }
  return best;
}

const timeAt = x => scene.from + (x - scene.plan.left) * (scene.to - scene.from) / (scene.plan.width - scene.plan.left);

function hover(event) {
  const span = spanAt(event);
  tip.hidden = !span;
  canvas.dataset.hover = span ? span.name : "";
  if (!span) return;
  describe(tip, span);
  const box = canvas.parentElement.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  tip.style.left = `${Math.max(0, Math.min(x + 14, box.width - tip.offsetWidth - 4))}px`;
  tip.style.top = `${y + 18}px`;
}

function step(direction) {
  const lanes = (scene.selected ? scene.selected.run : scene.view.runs[scene.view.runs.length - 1]).lanes;
  const all = lanes.flatMap(lane => lane.spans).filter(span => span.sort === COMMUNICATION).sort((a, b) => a.start - b.start);
  const at = all.indexOf(scene.selected);
  if (all.length) select(all[at < 0 ? (direction > 0 ? 0 : all.length - 1) : Math.max(0, Math.min(all.length - 1, at + direction))]);
}

// -- search -------------------------------------------------------------------------------------------------------------

function find() {
  const query = part("search").value.trim();
  found = search(scene.view, query);
  scene.searching = query !== "";
  current = -1;
  showFound();
  listCollectives(query);
  redraw();
}

function showFound() {
  part("found").textContent = !scene.searching ? "" : !found.length ? "no match" : current < 0 ? `${found.length} found` : `${current + 1} of ${found.length}`;
  part("next").disabled = part("previous").disabled = !found.length;
}

function jump(direction) {
  if (!found.length) return;
  current = current < 0 ? (direction > 0 ? 0 : found.length - 1) : (current + direction + found.length) % found.length;
  showFound();
  select(found[current]);
}

// -- the table ------------------------------------------------------------------------------------------------------------

const HEADINGS = [["collective"], ["verdict"], ["bytes", 1], ["exposed before", 1], ["exposed after", 1], ["module"], ["source"]];

function listCollectives(query = "") {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const all = scene.view.collectives.filter(row => words.every(word => rowText(row).toLowerCase().includes(word)));
  const sorted = [...all].sort((one, other) => (other.after_us ?? -1) - (one.after_us ?? -1));
  part("columns").replaceChildren(...HEADINGS.map(([name, number]) => element("th", name, number ? "number" : "")));
  part("rows").replaceChildren(...sorted.slice(0, LISTED).map(tableRow));
  part("listed").textContent = `${all.length} of ${scene.view.collectives.length} collectives, the most exposed first` +
    (all.length > LISTED ? `; ${LISTED} are listed, search to narrow them down.` : ".");
}

function tableRow(row) {
  const line = element("tr"), cell = element("td"), button = element("button", row.origin);
  button.type = "button";
  button.addEventListener("click", () => showOrigin(row.origin));
  cell.append(button);
  const verdict = element("td", row.verdict);
  verdict.title = [row.why, row.hint].filter(Boolean).join(": ");
  const time = us => element("td", us === null ? "" : timeText(us), "number");
  line.append(cell, verdict, element("td", bytesText(row.bytes), "number"), time(row.before_us), time(row.after_us),
    element("td", row.module), sourceCell(row.source));
  return line;
}

// The file's own name and the line; the whole path when pointed at.
function sourceCell(source) {
  const cell = element("td", source.replace(/^.*[/\\](?=[^/\\]+:\d+ in )/, ""));
  cell.title = source;
  return cell;
}

function showOrigin(origin) {
  for (const run of [...scene.view.runs].reverse())
    for (const lane of run.lanes) {
      const span = lane.spans.find(one => one.sort === COMMUNICATION && one.origins.includes(origin));
      if (span) { select(span); canvas.scrollIntoView({ block: "center" }); return; }
    }
}

// -- views ----------------------------------------------------------------------------------------------------------------

function showFigures() {
  const runs = scene.view.runs, first = runs[0], last = runs[runs.length - 1];
  const boxes = [["step", "step_us", timeText], ["exposed communication", "exposed_us", timeText], ["peak memory", "peak_bytes", bytesText]].map(([name, key, write]) => {
    const box = element("div"), value = element("dd", undefined, key === "exposed_us" && last[key] > 0 ? "strong" : "");
    if (write(first[key]) !== write(last[key])) value.append(element("span", `${write(first[key])} → `, "was"));
    value.append(write(last[key]));
    box.append(element("dt", name), value);
    return box;
  });
  part("figures").replaceChildren(...boxes);
  part("subtitle").textContent = scene.view.subtitle;
}

function choose(number) {
  Object.assign(scene, { view: data.views[number], selected: null });
  part("details").hidden = true;
  const runs = scene.view.runs.map(run => `${run.label}: step ${timeText(run.step_us)}, exposed ${timeText(run.exposed_us)}`);
  canvas.setAttribute("aria-label", `Timeline of ${scene.view.name}. ${runs.join(". ")}.`);
  showFigures();
  find();
  fit();
}

// -- input ----------------------------------------------------------------------------------------------------------------

const KEYS = {
  "+": () => zoom(1.5), "=": () => zoom(1.5), w: () => zoom(1.5), "-": () => zoom(1 / 1.5), s: () => zoom(1 / 1.5),
  ArrowLeft: () => move(-0.2), a: () => move(-0.2), ArrowRight: () => move(0.2), d: () => move(0.2),
  0: fit, Home: fit, ",": () => step(-1), ".": () => step(1), n: () => jump(1), N: () => jump(-1),
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.matches("input, select");
  if (event.key === "Escape") { part("search").value = ""; select(null); find(); return; }
  if (typing) return;
  if (event.key === "/") part("search").focus();
  else if (KEYS[event.key]) KEYS[event.key]();
  else return;
  event.preventDefault();
}

function onWheel(event) {
  if (!scene.plan) return;
  event.preventDefault();
  const sideways = event.shiftKey ? event.deltaY : event.deltaX;
  if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) move(sideways / 800);
  else zoom(Math.exp(-event.deltaY / 300), timeAt(Math.max(scene.plan.left, event.clientX - canvas.getBoundingClientRect().left)));
}

function onPress(event) {
  if (event.button !== 0) return;
  const began = event.clientX, { from, to } = scene, span = spanAt(event), ranging = event.shiftKey;
  const perPixel = (to - from) / (scene.plan.width - scene.plan.left), left = canvas.getBoundingClientRect().left;
  canvas.setPointerCapture(event.pointerId);
  canvas.classList.add("dragging");
  const drag = moved => {
    tip.hidden = true;
    if (!ranging) show(from - (moved.clientX - began) * perPixel, to - (moved.clientX - began) * perPixel);
  };
  canvas.addEventListener("pointermove", drag);
  const ended = moved => {
    canvas.removeEventListener("pointermove", drag);
    canvas.classList.remove("dragging");
    const far = Math.abs(moved.clientX - began);
    if (moved.type === "pointerup" && far < 4) select(span);
    else if (ranging && far >= 4) show(timeAt(Math.min(began, moved.clientX) - left), timeAt(Math.max(began, moved.clientX) - left));
  };
  canvas.addEventListener("pointerup", ended, { once: true });
  canvas.addEventListener("pointercancel", ended, { once: true });
}

function onOverview(event) {
  if (event.buttons !== 1) return;
  const box = overview.getBoundingClientRect(), middle = (event.clientX - box.left) / box.width * scene.view.end;
  const half = (scene.to - scene.from) / 2;
  show(middle - half, middle + half);
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  readColours();
}

function start() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  setTheme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
  part("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  data.views.forEach((view, number) => { const option = element("option", view.name); option.value = number; part("view").append(option); });
  part("view-choice").hidden = data.views.length < 2;
  part("view").addEventListener("change", event => choose(Number(event.target.value)));
  part("search").addEventListener("input", find);
  part("search-form").addEventListener("submit", event => event.preventDefault());
  part("search").addEventListener("keydown", event => { if (event.key === "Enter") { event.preventDefault(); jump(event.shiftKey ? -1 : 1); } });
  part("next").addEventListener("click", () => jump(1));
  part("previous").addEventListener("click", () => jump(-1));
  part("zoom-in").addEventListener("click", () => zoom(1.5));
  part("zoom-out").addEventListener("click", () => zoom(1 / 1.5));
  part("fit").addEventListener("click", fit);
  document.addEventListener("keydown", onKey);
  canvas.addEventListener("wheel", onWheel, { passive: false });
  canvas.addEventListener("pointerdown", onPress);
  canvas.addEventListener("pointermove", hover);
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("dblclick", event => { const span = spanAt(event); if (span) show(span.start - (span.end - span.start), span.end + (span.end - span.start)); });
  overview.addEventListener("pointerdown", onOverview);
  overview.addEventListener("pointermove", onOverview);
  new ResizeObserver(redraw).observe(canvas.parentElement);
  choose(0);
  document.documentElement.dataset.ready = "yes";
}

start();
