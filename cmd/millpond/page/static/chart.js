// The charts of a queue: uPlot draws what the server remembers.
"use strict";

{
  const box = document.getElementById("charts");
  const note = document.getElementById("chart-note");
  const colours = ["--link", "--warn"];
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const drawn = new Map();

  // growth says in words how a column has changed over at most ten minutes.
  const growth = (t, values) => {
    const last = values.length - 1;
    const first = t.findIndex((at, i) => at >= t[last] - 600 && values[i] != null);
    if (first < 0 || first >= last || values[last] == null) return "";
    const by = values[last] - values[first];
    return (by < 0 ? by : by > 0 ? "+" + by : "no change") + " in " + Math.max(1, Math.round((t[last] - t[first]) / 60)) + " min";
  };

  const draw = (element, data) => {
    const columns = element.dataset.chart.split(" ");
    const counts = ["dead", "ready"].includes(columns[0]);
    const seconds = Number(box.dataset.seconds), end = data.t.at(-1);
    const text = (v) => (v == null ? "–" : Number(v.toPrecision(4)).toLocaleString());
    const series = columns.map((name, i) => ({
      label: name, stroke: colour(colours[i]), width: 2, points: { show: data.columns[name].filter((v) => v != null).length < 3 },
      fill: i ? null : `color-mix(in srgb, ${colour(colours[i])} 12%, transparent)`,
      value: (_, v, __, at) => text(at == null ? data.columns[name].at(-1) : v), // the last one without a pointer
    }));
    const long = seconds > 86400;
    const time = new Intl.DateTimeFormat(undefined, long ? { day: "numeric", month: "short" } :
      { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 } };
    const values = [data.t, ...columns.map((name) => data.columns[name])];
    drawn.get(element)?.destroy();
    drawn.set(element, new uPlot({
      width: Math.max(element.clientWidth, 200), height: 180,
      series: [{ label: "time", value: (_, at) => (at == null ? "now" : new Date(1000 * at).toLocaleString()) }, ...series],
      axes: [{ ...axis, space: 60, values: (_, all) => all.map((at) => time.format(1000 * at)) },
        { ...axis, size: 60, values: (_, all) => all.map((v) => (counts && v % 1 ? "" : v.toLocaleString())) }],
      scales: { x: { range: () => [end - seconds, end] }, y: { range: (_, low, high) => [0, Math.max(1, high * 1.05)] } },
      cursor: { drag: { x: false, y: false }, sync: { key: "queue" } },
    }, values, element));
    const now = columns.map((name) => name + " " + (data.columns[name].at(-1) ?? "not known"));
    const grown = counts ? growth(data.t, values[1]) : "";
    const caption = element.previousElementSibling;
    element.setAttribute("aria-label", caption.textContent + ": now " +
      now.join(", ") + (grown ? ", " + grown : ""));
    caption.dataset.growth = grown;
  };

  let last = null;
  const drawAll = () => {
    if (last) for (const e of box.querySelectorAll("[data-chart]")) draw(e, last);
  };

  const load = async () => {
    let text = "";
    try {
      const answer = await fetch(new URL(box.dataset.from, location.origin));
      const data = answer.ok ? await answer.json() : null;
      if (!data) text = "The charts could not be loaded.";
      else if (!data.t?.length) text = "The first point comes within 15 s.";
      else {
        text = data.note ?? "";
        last = data;
        drawAll();
      }
    } catch {
      text = "The connection to the server is lost. The charts grow old.";
    }
    if (note.textContent !== text) note.textContent = text;
  };

  load();
  setInterval(() => document.hidden || load(), 15000);
  addEventListener("resize", drawAll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
}
