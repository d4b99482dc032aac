// Movement for pages that are complete without it: live parts, the age of the data, local times.
"use strict";

const base = document.body.dataset.base;
const skew = Date.now() - Number(document.body.dataset.now); // of this clock against the server's

// about writes milliseconds as the server does.
function about(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  const two = (large, name, small, smallName) => {
    const rest = Math.floor((s % large) / small);
    return Math.floor(s / large) + " " + name + (rest > 0 ? " " + rest + " " + smallName : "");
  };
  if (s < 60) return s + " s";
  if (s < 3600) return two(60, "min", 1, "s");
  if (s < 86400) return two(3600, "h", 60, "min");
  return two(86400, "d", 3600, "h");
}

function tick() {
  for (const t of document.querySelectorAll("time[data-ago]")) {
    t.textContent = about(Date.now() - skew - Number(t.dataset.ago)) + " ago";
  }
}

const local = new Intl.DateTimeFormat(undefined, {
  year: "numeric", month: "short", day: "2-digit", hour: "2-digit", minute: "2-digit",
  second: "2-digit", timeZoneName: "short",
});

// zones adds the reader's time beside UTC.
function zones(inside) {
  for (const t of inside.querySelectorAll("time[data-at]")) {
    if (t.querySelector(".zone")) continue;
    const zone = document.createElement("span");
    zone.className = "zone";
    zone.textContent = local.format(new Date(Number(t.dataset.at)));
    t.append(zone);
  }
}

// put replaces a live part. What has the focus or is open keeps it.
function put(part, html) {
  const focus = part.contains(document.activeElement) ? document.activeElement.id : "";
  const open = [...part.querySelectorAll("details[id][open]")].map((d) => d.id);
  part.innerHTML = html; // made by this server, which escapes all text
  if (part.querySelector("[data-reload]")) return location.reload();
  zones(part);
  tick();
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  if (focus) document.getElementById(focus)?.focus({ preventScroll: true });
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
  stream = new EventSource(base + "/events");
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

zones(document);
tick();
setInterval(() => document.hidden || tick(), 1000);
connect();
