// Numbers as words for people. Bytes in, seconds in; a number that is not known is a dash.

const UNKNOWN = "–";

/** 1536 -> "1.5 KiB" */
export function bytes(size) {
  return scaled(size, ["B", "KiB", "MiB", "GiB", "TiB"]);
}

/** 1536 -> "1.5 KiB/s" */
export function rate(size) {
  return known(size) ? `${bytes(size)}/s` : UNKNOWN;
}

/** 0.034 -> "34 ms"; 2.5 -> "2.5 s" */
export function duration(seconds) {
  if (!known(seconds)) return UNKNOWN;
  if (seconds < 1) return `${figure(seconds * 1000)} ms`;
  return `${figure(seconds)} s`;
}

/** 3700 -> "1 h 1 min" */
export function age(seconds) {
  if (!known(seconds)) return UNKNOWN;
  const [days, hours, minutes] = [86400, 3600, 60].map((unit) => Math.floor(seconds / unit));
  if (days) return `${days} d ${hours % 24} h`;
  if (hours) return `${hours} h ${minutes % 60} min`;
  return minutes ? `${minutes} min` : `${Math.floor(seconds)} s`;
}

/** 0.434 -> "43 %" */
export function percent(share) {
  return known(share) ? `${Math.round(share * 100)} %` : UNKNOWN;
}

/** Three figures at most: 1.2, 12.3, 123 */
export function figure(number) {
  if (!known(number)) return UNKNOWN;
  const digits = Math.abs(number) < 99.95 && number !== 0 ? 1 : 0;
  return number.toFixed(digits);
}

/** 1 -> "1 slot", 2 -> "2 slots" */
export function count(number, word) {
  return `${number} ${word}${number === 1 ? "" : "s"}`;
}

/** First and number of layers -> "layers 0–11" */
export function layers(first, number) {
  if (!number) return "no layers";
  return number === 1 ? `layer ${first}` : `layers ${first}–${first + number - 1}`;
}

/** Seconds since 1970 -> the time of day of whoever looks. */
export function clock(time) {
  return new Date(time * 1000).toLocaleTimeString([], { hour12: false });
}

function scaled(size, units) {
  if (!known(size)) return UNKNOWN;
  let step = 0;
  for (; size >= 1024 && step < units.length - 1; step++) size /= 1024;
  return `${step ? figure(size) : Math.round(size)} ${units[step]}`;
}

function known(number) {
  return number !== null && number !== undefined && !Number.isNaN(number);
}
