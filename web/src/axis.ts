// What a run is drawn over: its events, or the time of its last step.

import type { Timeline } from "./packed";

export interface Axis {
  label: string;
  /** What is all of it called? */
  whole: string;
  /** Moments before this one are not on it. */
  first: number;
  peak: number;
  end: number;
  /** The least that is ever shown. */
  closest: number;
  at(moment: number): number;
  write(value: number): string;
  steps: [at: number, label: string][];
  phases: [first: number, last: number, label: string, key: string][];
  /** Do several moments stand at one place? */
  isDense: boolean;
}

export function overEvents(data: Timeline): Axis {
  return {
    label: "events",
    whole: "Whole run",
    first: 0,
    peak: data.peak,
    end: Math.max(data.numEvents - 1, 1),
    closest: 8,
    at: (moment) => data.events[moment],
    write: (value) => (Number.isInteger(value) ? value.toLocaleString("en") : ""),
    steps: data.steps,
    phases: data.phases,
    isDense: false,
  };
}

const NS_PER_MS = 1e6;

export function overTime(data: Timeline): Axis | null {
  const { clock } = data;
  if (!clock) return null;
  return {
    label: `milliseconds of the last step, as predicted`,
    whole: "Whole step",
    first: clock.firstMoment,
    peak: clock.peak,
    end: clock.end,
    closest: 1000,
    at: (moment) => clock.times[Math.max(moment - clock.firstMoment, 0)],
    write: (value) => (value / NS_PER_MS).toLocaleString("en", { maximumFractionDigits: 6 }),
    steps: [],
    phases: clock.phases,
    isDense: true,
  };
}
