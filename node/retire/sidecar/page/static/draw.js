// Elements, numbers and bars. Text becomes text nodes, never markup: names are what agents chose.

export const STAGES = [
  ["commit", "Commit"],
  ["unpublishable", "Unpublishable"],
  ["fence", "Fence"],
  ["align", "Align"],
  ["resume", "Resume"],
];

export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role" || name === "scope") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export const count = (number) => Number(number).toLocaleString("en");

export function ms(value) {
  if (value === undefined || value === null) return "";
  if (value >= 10000) return `${(value / 1000).toFixed(1)} s`;
  if (value >= 1000) return `${(value / 1000).toFixed(2)} s`;
  return `${value >= 100 ? value.toFixed(0) : value.toFixed(1)} ms`;
}

export function ago(seconds) {
  if (seconds < 1) return "now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}

// Stages are milliseconds since the call: each segment runs from the end of the one before.
export function segments(stages) {
  const known = STAGES.filter(([name]) => Number.isFinite(stages[name]));
  const sorted = known.sort((a, b) => stages[a[0]] - stages[b[0]]);
  let from = 0;
  return sorted.map(([name, label]) => {
    const segment = { name, label, from, to: stages[name] };
    from = stages[name];
    return segment;
  });
}

export const extent = (stages) => Math.max(0, ...Object.values(stages).filter(Number.isFinite));

// The smallest 1, 2 or 5 times a power of ten that divides `max` into at most `parts`.
export function stepOf(max, parts = 5) {
  if (!(max > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(max / parts));
  return [1, 2, 5, 10].map((n) => n * power).find((step) => max / step <= parts);
}

export function scaleOf(max) {
  const step = stepOf(max);
  return { step, max: Math.max(step, Math.ceil(max / step - 1e-9) * step) };
}

export function place(node, from, to, max) {
  node.style.left = `${(100 * from) / max}%`;
  if (to !== null) node.style.width = `${(100 * Math.max(0, to - from)) / max}%`;
  return node;
}

export function fillBar(bar, stages, scale) {
  bar.style.setProperty("--step", `${(100 * scale.step) / scale.max}%`);
  const parts = segments(stages).map(({ name, label, from, to }) =>
    place(el("i", { className: name, title: `${label}: ${ms(to)} after the call` }), from, to, scale.max));
  bar.replaceChildren(...parts);
  if (Number.isFinite(stages.unpublishable)) {
    bar.append(place(el("span", { className: "point" }), stages.unpublishable, null, scale.max));
  }
  return bar;
}

export function fillAxis(axis, scale) {
  const labels = [];
  for (let at = 0; at <= scale.max + 1e-9; at += scale.step) {
    const text = `${Number(at.toPrecision(6))}${at + scale.step > scale.max + 1e-9 ? " ms" : ""}`;
    labels.push(place(el("span", {}, text), at, null, scale.max));
  }
  axis.replaceChildren(...labels);
}
