// Among numbers that rise.

/** The first that is not below `at`. */
export function lowerBound(rising: number[], at: number): number {
  let [low, high] = [0, rising.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rising[middle] < at) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The part that lies between two of them, with one more at each side. */
export function bounds(rising: number[], from: number, to: number): [number, number] {
  return [Math.max(lowerBound(rising, from) - 1, 0), Math.min(lowerBound(rising, to) + 1, rising.length)];
}
