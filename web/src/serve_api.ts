// The server's side of the page: every request carries the token that is in the page's address.

const token = new URLSearchParams(location.search).get("token") ?? "";

/** This window, for the server: a question of the same window replaces those of earlier turns. */
const windowId = Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(36)).join("-"); // randomUUID is for https alone
let turn = 0;

export type Change = Record<string, string | number>;

export interface Question {
  kind: "model" | "hf" | "function" | "script";
  subject: string;
  gpu: string;
  world_size: number;
  words: Record<string, string | number>;
  price: number | null;
  alloc_conf: string;
  interconnect: string;
}

export interface Tick {
  y: number;
  text: string;
}

export interface Picture {
  width: number;
  height: number;
  areas: { key: string; label: string; points: string }[];
  ticks: Tick[];
  span: string;
}

export interface Answer {
  kind: "bound" | "cached" | "exact" | "none" | "error";
  key: string;
  tone: "good" | "bad" | "open";
  headline: string;
  recipe: string;
  covered?: string;
  command: string;
  python: string;
  plan?: string;
  details?: string;
  gpus?: { name: string; isWanted: boolean; share: number; text: string; verdict: string; tone: string }[];
  categories?: { label: string; key: string; share: number; text: string }[];
  modules?: { path: string; share: number; text: string }[];
  ladder?: [string, string, string][];
  remarks?: string[];
  time?: string[];
  cost?: string;
  picture?: Picture | null;
  tried?: { text: string; fits: boolean }[];
  ways?: { text: string; change: Change; mayFit: boolean }[];
  assumptions?: string[];
}

export interface Control {
  name: string;
  label: string;
  help: string;
  kind: "menu" | "slider" | "number" | "text";
  options?: string[];
  stops?: number[];
  /** What an empty field means. */
  usual: string;
  isFirst: boolean;
}

export interface Controls {
  version: string;
  folder: string;
  models: { name: string; text: string; context: number }[];
  gpus: { name: string; text: string }[];
  worldSizes: number[];
  axes: Control[];
  configs: string[];
  functions: string[];
  scripts: string[];
}

export interface LedgerRow {
  name: string;
  text: string;
  size: string;
  isBroken: boolean;
  isRunning: boolean;
}

export interface Overlay {
  width: number;
  height: number;
  lines: string[];
  peaks: string[];
  names: string[];
  ticks: Tick[];
}

export interface RankStatus {
  rank: number;
  step: string;
  inUse: string;
  peak: string;
  left: string;
  share: number;
  peakShare: number;
  trend: string;
  alarms: string[];
  categories: { key: string; label: string; text: string }[];
}

/** What the server refused, in its own words. */
export class Refused extends Error {}

/** The server does not answer at all. */
export class Gone extends Error {}

/** The server has dropped the question: a later one of this window was there before it, or so it seemed. */
export class Dropped extends Error {}

const CANCELLED = 499;

async function call(path: string, options: RequestInit): Promise<any> {
  let response: Response;
  try {
    response = await fetch(path, { ...options, headers: { "X-Memfit-Token": token } });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Gone();
  }
  if (response.status === CANCELLED) throw new Dropped();
  const text = await response.text();
  let found: any;
  try {
    found = JSON.parse(text);
  } catch {
    throw new Refused(text.trim() || `the server answered ${response.status}`);
  }
  if (!response.ok) throw new Refused(found.error ?? `the server answered ${response.status}`);
  return found;
}

export function ask(path: string, body: unknown, signal?: AbortSignal): Promise<any> {
  return call(path, { method: "POST", body: body instanceof Blob ? body : JSON.stringify(body), signal });
}

/** Asks for the exact answer; what this window asked before is dropped. */
export function askExactly(question: Question, signal: AbortSignal): Promise<any> {
  return ask("/api/exact", { ...question, window: windowId, turn: ++turn }, signal);
}

export function look(path: string, signal?: AbortSignal): Promise<any> {
  return call(path, { signal });
}

/** The address of a page of the server, for a link or a frame. */
export function address(path: string, query: [string, string][]): string {
  return `${path}?${new URLSearchParams([...query, ["token", token]])}`;
}

/** Nobody waits any longer for what this window has asked. */
export function sayGoodbye(): void {
  fetch("/api/leave", { method: "POST", keepalive: true, headers: { "X-Memfit-Token": token }, body: JSON.stringify({ window: windowId, turn }) }).catch(() => {});
}
