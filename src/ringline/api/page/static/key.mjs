// The API key that a person typed: kept until the tab is closed, sent in a header, never in a URL.

const NAME = "ringline-api-key";

/** The key, or "". */
export function key() {
  try {
    return sessionStorage.getItem(NAME) ?? "";
  } catch {
    return ""; // a browser that keeps nothing
  }
}

/** Keep a key; "" forgets it. */
export function keep(value) {
  try {
    if (value) sessionStorage.setItem(NAME, value);
    else sessionStorage.removeItem(NAME);
  } catch {
    // It is asked for again after a reload.
  }
}

/** Headers of a request: those given, and the key if there is one. */
export function headers(others = {}) {
  return key() ? { ...others, Authorization: `Bearer ${key()}` } : others;
}
