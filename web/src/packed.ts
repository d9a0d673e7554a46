// What Python packed: positions for drawing, and strings for reading. `...Texts` are numbers of strings.

/** The last step over its time, in nanoseconds since it began. */
export interface Clock {
  /** The first moment that is in it; `times` and `timeTexts` are of the moments from there. */
  firstMoment: number;
  times: number[];
  timeTexts: number[];
  end: number;
  peak: number;
  phases: [first: number, last: number, label: string, key: string][];
  kinds: { key: string; label: string }[];
  lanes: Lane[];
}

export interface Lane {
  name: string;
  label: string;
  begins: number[];
  ends: number[];
  /** How much of each it was busy, in percent. */
  shares: number[];
  kinds: string[];
  whatTexts: number[];
  howTexts: number[];
  whenTexts: number[];
  /** How long it did nothing before each, and after the last. */
  idleTexts: number[];
}

export interface Timeline {
  height: number;
  ticks: [place: number, label: string][];
  limit: [place: number, label: string] | null;
  numEvents: number;
  events: number[];
  levels: number[][];
  levelTexts: string[];
  categories: { key: string; label: string }[];
  stack: number[][];
  reserved: number[] | null;
  totalTexts: number[];
  reservedTexts: number[] | null;
  categoryTexts: number[][];
  whereTexts: number[];
  timeTexts: number[] | null;
  steps: [event: number, label: string][];
  phases: [first: number, last: number, label: string, key: string][];
  peak: number;
  cutShort: boolean;
  /** Is the step over its time shown first? */
  startsOverTime: boolean;
  clock: Clock | null;
  blocks: [category: string, sizeText: number, opText: number, ownerText: number][];
  blockLists: number[][];
  blocksOfMoment: number[];
}

export interface Tree {
  label: string;
  parents: number[];
  names: number[];
  paths: number[];
  kinds: number[];
  calls: number[];
  values: number[][];
  valueTexts: number[][];
  peaks: { label: string; texts: number[] }[];
  strips: number[][];
}

export interface Modules {
  measures: { key: string; label: string }[];
  trees: Tree[];
}

/** The allocator's segments at some moments, end to end in rows. */
export interface PackedSegments {
  width: number;
  rows: number;
  rowText: string;
  pieces: [row: number, from: number, width: number, kind: string, text: number][];
  /** The pieces that there are at each moment. */
  moments: number[][];
  momentTexts: number[];
  peak: number;
}

export interface Packed {
  runs: { timeline: Timeline; modules: Modules; segments: PackedSegments | null }[];
  texts: string[];
  nothingText: number;
}

export async function unpack(base64: string): Promise<Packed> {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}
