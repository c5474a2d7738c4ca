// Bytes and numbers for people, as the texts of the package write them.
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

function bytes(size) {
  if (size === null || size === undefined) return "unknown";
  const sign = size < 0 ? "-" : "";
  let value = Math.abs(size);
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${sign}${unit ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`;
}

const signed = (size, text = bytes) => (size > 0 ? "+" : size < 0 ? "−" : "±") + text(Math.abs(size));
const number = (value) => value.toLocaleString("en-US");
const count = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
const percent = (share) => `${share >= 0.1 || share === 0 ? Math.round(share * 100) : (share * 100).toFixed(1)} %`;
const isSize = (metric) => ["requested", "peak", "reserved", "retained"].includes(metric);
const metricText = (metric, value) => (isSize(metric) ? bytes(value) : metric === "fragmentation" ? `${(value / 100).toFixed(1)} %` : number(value));
const range = (metric, [low, high]) =>
  low === high ? metricText(metric, low) : `${metricText(metric, low)} to ${metricText(metric, high)}`;

function duration(micros) {
  if (micros < 1000) return `${Math.round(micros)} µs`;
  if (micros < 1e6) return `${(micros / 1000).toFixed(micros < 1e4 ? 2 : 1)} ms`;
  return `${(micros / 1e6).toFixed(2)} s`;
}

// Ticks from 0 to the largest: steps of 1, 2 or 5 times a power of ten of a binary unit, at most `most` of them.
function ticks(largest, most = 5, base = 1024) {
  let unit = 1;
  while (largest / unit >= base && unit < base ** 4) unit *= base;
  let step = unit === 1 ? 1 : 0.01;
  const next = [2, 2.5, 2];
  for (let i = 0; largest / unit / step > most; i += 1) step *= next[i % 3];
  const found = [];
  for (let value = 0; value <= largest * 1.0001; value += step * unit) found.push(value);
  return found;
}

const tick = (size) => (size ? bytes(size).replace(/\.0 /, " ") : "0");
