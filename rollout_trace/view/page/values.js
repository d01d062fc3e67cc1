"use strict";
// How values are written, sorted and remembered. The scripts are joined into one: all of them know the names that stand
// here and in dom.js, and each has its own in RT.
const RT = {};

const known = (value) => value !== null && value !== undefined;

/** Whether a part of a message has no text. */
const isMedia = (part) => ["image", "audio", "file"].includes(part.kind);

/** A count with thousands separated: "1,204"; "-" for what is not known. */
function count(n) {
  return Number.isFinite(n) ? n.toLocaleString("en-US", { maximumFractionDigits: 0 }) : "-";
}

/** A count in at most five characters: "981", "12.4k", "3.1M". */
function short(n) {
  if (!Number.isFinite(n)) return "-";
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(n) >= size * 0.9995) {
      const scaled = n / size;
      return (Math.abs(scaled) < 99.95 ? scaled.toFixed(1) : Math.round(scaled)) + unit;
    }
  }
  return number(n);
}

/** A number in at most four (or `digits`) significant digits: "1", "0.25", "-3.077". */
function number(x, digits = 4) {
  if (!Number.isFinite(x)) return x === Infinity ? "inf" : x === -Infinity ? "-inf" : "-";
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size >= 1e6 || size < 1e-4) return x.toExponential(2);
  return String(Number(x.toPrecision(digits)));
}

/** A duration: "0.8 ms", "0.41 s", "2 m 05 s", "3 h 12 m". */
function duration(seconds) {
  if (!Number.isFinite(seconds)) return "-";
  const size = Math.abs(seconds);
  if (size === 0) return "0 s";
  if (size < 0.0995) return Number((seconds * 1000).toPrecision(2)) + " ms";
  if (size < 9.995) return seconds.toFixed(2) + " s";
  if (size < 59.95) return seconds.toFixed(1) + " s";
  const parts = (whole, large, small) =>
    `${Math.floor(whole / 60)} ${large} ${String(whole % 60).padStart(2, "0")} ${small}`;
  return size < 3599.5 ? parts(Math.round(seconds), "m", "s") : parts(Math.round(seconds / 60), "h", "m");
}

/** An amount of money: "$0.0004"; other currencies by their code. */
function cost(amount, currency) {
  if (!Number.isFinite(amount)) return "-";
  const size = Math.abs(amount);
  const places = size === 0 || size >= 0.0995 ? 2 : Math.min(10, 1 - Math.floor(Math.log10(size)));
  const digits = amount.toFixed(places);
  return !currency || currency.toUpperCase() === "USD" ? "$" + digits : `${digits} ${currency}`;
}

/** A Unix time in the reader's zone, as Swedes write it: "2026-11-23 08:02:11". */
function time(unix) {
  const date = new Date(Number.isFinite(unix) ? unix * 1000 : NaN);
  return Number.isNaN(date.getTime()) ? "-" : date.toLocaleString("sv-SE");
}

/** "1 step", "3 steps"; `many` where the plural is not `one` + "s". */
const plural = (n, one, many = one + "s") => `${count(n)} ${n === 1 ? one : many}`;

/** The probability of a logprob, in three digits. */
function probability(logprob) {
  const p = Math.exp(logprob);
  return p !== 0 && p < 0.001 ? p.toExponential(1) : p.toFixed(3);
}

/** A ratio of probabilities, from its logarithm. */
const ratio = (log) => (Math.abs(log) < 6.9 ? Math.exp(log).toFixed(3) : Math.exp(log).toExponential(1));

/** Those of some facts that there are, in one line. */
const dotted = (facts) => facts.filter(Boolean).join(" · ");

/** A status as the class of a dot: good, warn, bad or idle. */
function toneOfStatus(status) {
  if (status === "completed" || status === "ok") return "good";
  if (status === "error" || status === "failed" || status === "timeout") return "bad";
  return status === "running" || status === "open" ? "idle" : "warn";
}

const toneOfGrade = (grade) => ({ fatal: "bad", warning: "warn", info: "idle" })[grade] || "";

const least = (numbers) => numbers.reduce((a, b) => Math.min(a, b), Infinity);
const most = (numbers) => numbers.reduce((a, b) => Math.max(a, b), -Infinity);
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const mean = (numbers) => (numbers.length ? sum(numbers) / numbers.length : null);

/** The sample's standard deviation; null of fewer than two numbers. */
function deviation(numbers) {
  const middle = mean(numbers);
  return numbers.length < 2 ? null : Math.sqrt(sum(numbers.map((x) => (x - middle) ** 2)) / (numbers.length - 1));
}

/** How many of some rising numbers are not above `wanted`. */
function upTo(numbers, wanted) {
  let [low, high] = [0, numbers.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] > wanted) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** The items in order of a value; those without one come last in both directions; equal ones stay as they were. */
function sortedBy(items, valueOf, reverse) {
  const sign = reverse ? -1 : 1;
  return items.map((item) => [valueOf(item), item]).sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return a < b ? -sign : a > b ? sign : 0;
  }).map(([, item]) => item);
}

/** A query with its question mark; values that are null, undefined or "" are left out. */
function queryString(values) {
  const kept = Object.entries(values).filter(([, value]) => known(value) && value !== "");
  return kept.length ? `?${new URLSearchParams(kept)}` : "";
}

/** A value remembered in the reader's browser, or `otherwise`. */
function remembered(name, otherwise) {
  try {
    return JSON.parse(window.localStorage.getItem("rollout-trace." + name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function remember(name, value) {
  try {
    window.localStorage.setItem("rollout-trace." + name, JSON.stringify(value));
  } catch {
    // Without storage the choice lasts as long as the page.
  }
}
