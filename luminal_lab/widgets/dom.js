// Elements with attributes, listeners and children; numbers with units.

const SVG = "http://www.w3.org/2000/svg";

const element = (tag, attrs = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [k, v] of Object.entries(attrs)) {
    if (k.startsWith("on")) node.addEventListener(k.slice(2), v);
    else if (v === true) node.setAttribute(k, "");
    else if (v !== false && v != null) node.setAttribute(k, v);
  }
  node.append(...children.filter((c) => c != null));
  return node;
};
const shape = (tag, attrs = {}, ...children) => {
  const node = document.createElementNS(SVG, tag);
  for (const [k, v] of Object.entries(attrs)) if (v != null) node.setAttribute(k, v);
  node.append(...children.filter((c) => c != null));
  return node;
};

// ------------------------------------------------------------------------------- numbers

const UNITS = {
  s: [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]],
  B: [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [1024, "KiB"], [1, "B"]],
  FLOP: [[1e12, "TFLOP"], [1e9, "GFLOP"], [1e6, "MFLOP"], [1e3, "kFLOP"], [1, "FLOP"]],
};
function spell(value, unit) {
  const scale = UNITS[unit];
  if (!scale) return `${+value.toPrecision(3)}${unit ? " " + unit : ""}`;
  const [by, name] = scale.find(([by]) => value >= by) ?? scale[scale.length - 1];
  return `${+(value / by).toPrecision(3)} ${name}`;
}
