// Movement for pages that are complete without it: live parts, times, ticked rows and keys.
"use strict";

const base = document.body.dataset.base;
const skew = Date.now() - Number(document.body.dataset.now); // of this clock against the server's

// about writes milliseconds as the server does: with one unit.
function about(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  if (s < 60) return s + " s";
  if (s < 3600) return Math.floor(s / 60) + " min";
  return s < 2 * 86400 ? Math.floor(s / 3600) + " h" : Math.floor(s / 86400) + " d";
}

function tick() {
  for (const t of document.querySelectorAll("time[datetime]")) {
    const since = Date.now() - skew - new Date(t.dateTime);
    const text = since < 0 ? "in " + about(-since) : about(since) + " ago";
    if (t.textContent !== text) t.textContent = text;
  }
}

const local = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });

// The whole time, in the reader's zone, when somebody points at it.
addEventListener("pointerover", (event) => {
  const t = event.target.closest?.("time[datetime]");
  if (t) t.title = local.format(new Date(t.dateTime));
});

// put replaces a live part. What has the focus or is open keeps it.
function put(part, html) {
  const active = part.contains(document.activeElement) ? document.activeElement : null;
  const row = active?.tagName === "TR";
  const focus = (row ? active.querySelector("[id]") : active)?.id;
  const open = [...part.querySelectorAll("details[id][open]")].map((d) => d.id);
  part.innerHTML = html; // made by this server, which escapes all text
  const busy = document.querySelector(".box[data-live] .busy"); // another look, of several
  if (part.querySelector("[data-reload]") && !busy) return location.reload();
  tick();
  const count = part.querySelector("[data-count]")?.dataset.count;
  if (count) document.title = (count > 0 ? `(${count}) ` : "") + document.title.replace(/^\(.*?\) /, "");
  for (const input of document.querySelectorAll("input[data-filter]")) narrow(input);
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  const again = focus && document.getElementById(focus);
  if (again && row) at(again.closest("tr"), { preventScroll: true });
  else again?.focus({ preventScroll: true });
}

// A part that changed between the press and the release of a button would swallow the click.
let held = false;
const late = new Map();
for (const [name, down] of [["pointerdown", true], ["pointerup", false], ["pointercancel", false]]) {
  addEventListener(name, () => {
    held = down;
    if (!down) setTimeout(release);
  });
}

// A page that loads itself again while the answer to a click is under way would drop that answer.
addEventListener("beforeunload", () => {
  late.clear();
  disconnect();
  setTimeout(connect, 60000); // the person has stopped it, or it was a download
});

function release() {
  if (held) return;
  for (const [part, html] of late) put(part, html);
  late.clear();
}

const parts = [...document.querySelectorAll("[data-live]")];
const link = document.getElementById("link");
let stream = null;

function say(text) {
  if (link && link.textContent !== text) link.textContent = text;
}

function connect() {
  if (stream || document.hidden || parts.length === 0) return;
  const names = new URLSearchParams(parts.map((part) => ["part", part.dataset.live]));
  stream = new EventSource(base + "/events?" + names);
  stream.onopen = () => say("");
  stream.onerror = () => {
    say("The connection to the server is lost. The data grow old.");
    if (stream.readyState === EventSource.CLOSED) {
      stream = null;
      setTimeout(connect, 10000);
    }
  };
  for (const part of parts) {
    stream.addEventListener(part.dataset.live, (event) => {
      const selected = document.getSelection();
      const busy = selected && !selected.isCollapsed && part.contains(selected.anchorNode);
      if (held) late.set(part, event.data);
      else if (!busy) put(part, event.data);
    });
  }
}

function disconnect() {
  stream?.close();
  stream = null;
}

document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
addEventListener("pagehide", disconnect);
addEventListener("pageshow", connect);

// A field with data-filter shows the rows of that table that have all of its words.
function narrow(input) {
  const words = input.value.toLowerCase().split(/\s+/);
  const table = document.getElementById(input.dataset.filter);
  let shown = 0;
  for (const row of table?.tBodies[0]?.rows ?? []) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
    shown += !row.hidden;
  }
  table?.classList.toggle("none", shown === 0);
}

// The rows that can be ticked, and the bar with what can be done with the ticked ones.
function bar(form) {
  const ticked = [...form.querySelectorAll(".tick input[name]:checked")];
  const queues = new Set(ticked.map((box) => box.dataset.queue));
  const n = ticked.reduce((sum, box) => sum + Number(box.dataset.count), 0);
  const count = String(n).replace(/\B(?=(\d{3})+$)/g, "\u202f");
  const bar = form.querySelector(".bar");
  bar.classList.toggle("on", ticked.length > 0);
  if (queues.size === 1) form.elements.queue.value = [...queues][0];
  for (const button of bar.querySelectorAll("button")) {
    button.disabled = queues.size > 1;
    button.textContent = button.dataset.label.replace("#", count) + (n === 1 ? "" : "s");
  }
  bar.querySelector("[role=status]").textContent = queues.size < 2 ? ""
    : `The ticked rows are of ${queues.size} queues. An action works on one: untick some.`;
  for (const row of form.querySelectorAll("tbody tr")) {
    row.classList.toggle("ticked", row.querySelector(".tick input")?.checked ?? false);
  }
}

for (const form of document.querySelectorAll("form.rows")) {
  const all = document.createElement("input");
  all.type = "checkbox";
  all.ariaLabel = "Tick all rows";
  if (form.querySelector(".tick input[name]")) form.querySelector("th.tick").replaceChildren(all);
  form.classList.add("live");
  form.addEventListener("change", (event) => {
    const boxes = form.querySelectorAll(".tick input[name]");
    if (event.target === all) for (const box of boxes) box.checked = all.checked;
    else all.checked = [...boxes].every((box) => box.checked);
    bar(form);
  });
  bar(form);
}

// Keys.
function at(row, options) {
  if (!row) return;
  row.tabIndex = -1;
  row.focus(options);
}

function step(by) {
  const all = [...document.querySelectorAll("main tbody tr")].filter((row) => !row.hidden);
  const here = all.indexOf(document.activeElement.closest("tr"));
  at(all[here < 0 ? 0 : Math.min(Math.max(here + by, 0), all.length - 1)]);
}

const sheet = document.getElementById("sheet");
const places = { n: "/", d: "/dead", w: "/waiting", s: "/stranded", b: "/brakes" };
const keys = {
  j: () => step(1),
  k: () => step(-1),
  x: () => document.activeElement.closest("tr")?.querySelector(".tick input")?.click(),
  "/": () => document.querySelector("main input[type=search]")?.focus(),
  "?": () => sheet.showModal(),
};
let went = 0; // when g was pressed

addEventListener("keydown", (event) => {
  const { key } = event, here = document.activeElement;
  const row = here.closest("main tbody tr");
  const writes = here.matches("textarea, select, input:not([type=checkbox])");
  if (key === "Escape" && !sheet.open) {
    if (writes) here.blur();
    for (const box of document.querySelectorAll(".tick input:checked")) box.checked = false;
    document.querySelectorAll("form.rows").forEach(bar);
  }
  if (event.ctrlKey || event.altKey || event.metaKey || writes || sheet.open) return;
  let act = null;
  if (row && key.startsWith("Arrow")) {
    act = { ArrowDown: keys.j, ArrowUp: keys.k }[key];
  } else if (key === "Enter" && row && (here === row || here.matches(".tick input"))) {
    act = () => row.querySelector("th a")?.click();
  } else if (localStorage.getItem("shortcuts") !== "off") {
    const place = Date.now() - went < 1500 && places[key];
    act = place ? () => location.assign(base + place) : keys[key];
    went = key === "g" ? Date.now() : 0;
  }
  if (!act) return;
  event.preventDefault();
  act();
});

// What the reader has chosen, and this browser keeps.
const theme = document.getElementById("theme"), shortcuts = document.getElementById("shortcuts");
theme.value = document.documentElement.dataset.theme;
theme.addEventListener("change", () => {
  localStorage.setItem("theme", theme.value);
  document.documentElement.dataset.theme = theme.value;
  dispatchEvent(new Event("resize")); // charts draw themselves again
});
shortcuts.checked = localStorage.getItem("shortcuts") !== "off";
shortcuts.addEventListener("change", () =>
  localStorage.setItem("shortcuts", shortcuts.checked ? "on" : "off"));
const opener = document.querySelector("[data-sheet]");
opener.addEventListener("click", () => sheet.showModal());
opener.hidden = theme.hidden = false;
addEventListener("input", (event) => event.target.dataset?.filter && narrow(event.target));

document.querySelector("nav [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
tick();
setInterval(() => document.hidden || tick(), 1000);
connect();
