// Memory over the run: stacked areas, a line for what is reserved, and one chosen moment.

import uPlot from "uplot";
import { button, colour, make } from "./dom";
import { drawMarks, MARKS_HEIGHT } from "./marks";
import type { Packed, Timeline } from "./packed";
import { Readout } from "./readout";

const MOST_POINTS = 3200;
const ZOOM = 2;
const CLOSEST = 8;

export class Chart {
  private readonly frame = make("div", { class: "frame", tabindex: "0", role: "slider" });
  private readonly fineness = make("span", { class: "quiet" });
  private readonly marker = make("div", { class: "marker" });
  private readonly readout: Readout;
  private readonly levelEvents: number[][];
  private readonly plot: uPlot;
  private shown: number[] = [];
  private chosen: number;
  private from = 0;
  private to: number;

  constructor(host: HTMLElement, private readonly data: Timeline, packed: Packed) {
    this.readout = new Readout(data, packed);
    this.levelEvents = data.levels.map((level) => level.map((moment) => data.events[moment]));
    this.chosen = data.peak;
    this.to = this.end;
    host.append(make("div", { class: "chart" }, this.toolbar(), this.frame), this.readout.element);
    this.frame.setAttribute("aria-label", `Memory over the run. ${host.dataset.keys}`);
    this.readout.show(this.chosen);
    this.plot = new uPlot(this.options(), this.points(0, this.end), this.frame);
    this.plot.over.append(this.marker);
    this.listen();
    this.choose(data.peak);
  }

  private get end(): number {
    return Math.max(this.data.numEvents - 1, 1);
  }

  // -- what is drawn ---------------------------------------------------------------------------------------------------------

  private options(): uPlot.Options {
    const { data } = this;
    const font = `11px ${getComputedStyle(document.body).fontFamily}`;
    const axis = { font, stroke: () => colour("quiet"), ticks: { show: false } };
    return {
      width: this.frame.clientWidth || 600,
      height: this.height(),
      padding: [MARKS_HEIGHT, 10, 0, 0],
      legend: { show: false },
      cursor: { x: false, y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
      scales: { x: { time: false, range: (_, min, max) => [min, max] }, y: { range: [0, data.height] } },
      axes: [
        { ...axis, grid: { show: false }, size: 24, label: "events", labelSize: 18, labelFont: font, labelGap: 0, values: (_, splits) => splits.map(asEvent) },
        {
          ...axis,
          size: 66,
          grid: { stroke: () => colour("line"), width: 1 },
          splits: () => data.ticks.map(([place]) => place),
          values: () => data.ticks.map(([, label]) => label),
        },
      ],
      series: [{}, ...this.areas(), ...(data.reserved ? [this.line()] : [])],
      hooks: {
        draw: [(plot) => drawMarks(plot, data, font)],
        setCursor: [(plot) => this.point(plot.cursor.left ?? -1)],
        setSelect: [(plot) => this.zoomToSelection(plot)],
      },
    };
  }

  /** The highest first, each down to the ground: those below are painted over it. */
  private areas(): uPlot.Series[] {
    return [...this.data.categories].reverse().map(({ key, label }) => ({
      label,
      paths: uPlot.paths.stepped!({ align: 1 }),
      fill: () => colour(`c-${key}`),
      width: 0,
      points: { show: false },
    }));
  }

  private line(): uPlot.Series {
    const paths = uPlot.paths.stepped!({ align: 1 });
    return { label: "reserved", paths, stroke: () => colour("ink"), width: 1.5, points: { show: false } };
  }

  private height(): number {
    if (this.frame.clientWidth < 520) return 300;
    return Math.min(Math.max(this.readout.element.clientHeight - 40, 400), 640);
  }

  /** The moments of the finest level that is not too fine for this part of the run. */
  private points(from: number, to: number): uPlot.AlignedData {
    const { data, levelEvents } = this;
    let level = levelEvents.length - 1;
    let [first, last] = bounds(levelEvents[level], from, to);
    while (level > 0 && last - first > MOST_POINTS) {
      level -= 1;
      [first, last] = bounds(levelEvents[level], from, to);
    }
    this.fineness.textContent = data.levelTexts[level];
    this.shown = data.levels[level].slice(first, last);
    const column = (values: number[]) => this.shown.map((moment) => values[moment]);
    const areas = data.stack.map(column).reverse();
    return [column(data.events), ...areas, ...(data.reserved ? [column(data.reserved)] : [])];
  }

  // -- zoom ------------------------------------------------------------------------------------------------------------------

  private view(from: number, to: number): void {
    const width = Math.min(Math.max(to - from, CLOSEST), this.end);
    const start = Math.min(Math.max((from + to - width) / 2, 0), this.end - width);
    [this.from, this.to] = [start, start + width];
    this.plot.batch(() => {
      this.plot.setData(this.points(this.from, this.to), false);
      this.plot.setScale("x", { min: this.from, max: this.to });
    });
    this.placeMarker();
  }

  private zoom(factor: number, around = this.data.events[this.chosen]): void {
    const middle = around < this.from || around > this.to ? (this.from + this.to) / 2 : around;
    this.view(middle - (middle - this.from) / factor, middle + (this.to - middle) / factor);
  }

  private zoomToSelection(plot: uPlot): void {
    const { left, width } = plot.select;
    if (width < 4) return;
    const [from, to] = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.view(from, to);
  }

  private goToPeak(): void {
    const peak = this.data.events[this.data.peak];
    const reach = Math.max(this.end / 40, CLOSEST);
    this.view(peak - reach, peak + reach);
    this.choose(this.data.peak);
  }

  // -- the chosen moment -----------------------------------------------------------------------------------------------------

  private choose(moment: number): void {
    this.chosen = moment;
    this.readout.show(moment);
    this.placeMarker();
    this.frame.setAttribute("aria-valuemin", "0");
    this.frame.setAttribute("aria-valuemax", String(this.data.numEvents - 1));
    this.frame.setAttribute("aria-valuenow", String(this.data.events[moment]));
    this.frame.setAttribute("aria-valuetext", this.readout.sentence(moment));
  }

  /** What is drawn at a position is the last moment before it. */
  private point(left: number): void {
    if (left < 0) return;
    const events = this.plot.data[0] as number[];
    const after = lowerBound(events, Math.floor(this.plot.posToVal(left, "x")) + 1);
    this.choose(this.shown[Math.max(after - 1, 0)]);
  }

  private placeMarker(): void {
    const event = this.data.events[this.chosen];
    this.marker.hidden = event < this.from || event > this.to;
    this.marker.style.left = `${this.plot.valToPos(event, "x")}px`;
  }

  /** To another of the moments that are drawn; the view follows. */
  private move(by: number): void {
    const event = this.data.events[this.chosen];
    const here = this.shown.findIndex((moment) => this.data.events[moment] >= event);
    const next = this.shown[Math.min(Math.max((here < 0 ? 0 : here) + by, 0), this.shown.length - 1)];
    this.choose(next);
    const at = this.data.events[next];
    const width = this.to - this.from;
    if (at < this.from || at > this.to) this.view(at - width / 2, at + width / 2);
  }

  // -- hands -----------------------------------------------------------------------------------------------------------------

  private toolbar(): HTMLElement {
    return make(
      "div",
      { class: "toolbar" },
      button("Go to the peak", "P", () => this.goToPeak()),
      button("Zoom in", "+", () => this.zoom(ZOOM)),
      button("Zoom out", "−", () => this.zoom(1 / ZOOM)),
      button("Whole run", "0", () => this.view(0, this.end)),
      this.fineness,
    );
  }

  private listen(): void {
    const { over } = this.plot;
    this.frame.addEventListener("keydown", (event) => this.onKey(event));
    over.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    over.addEventListener("dblclick", () => this.view(0, this.end));
    for (const kind of ["touchstart", "touchmove"] as const)
      over.addEventListener(kind, (event) => this.onTouch(event), { passive: true });
    new ResizeObserver(() => {
      if (!this.frame.clientWidth) return; // another run is shown
      this.plot.setSize({ width: this.frame.clientWidth, height: this.height() });
      this.placeMarker();
    }).observe(this.frame);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.plot.redraw());
  }

  private onKey(event: KeyboardEvent): void {
    const far = event.shiftKey ? 10 : 1;
    const acts: Record<string, () => void> = {
      ArrowLeft: () => this.move(-far),
      ArrowRight: () => this.move(far),
      Home: () => this.move(-this.shown.length),
      End: () => this.move(this.shown.length),
      "+": () => this.zoom(ZOOM),
      "=": () => this.zoom(ZOOM),
      "-": () => this.zoom(1 / ZOOM),
      "0": () => this.view(0, this.end),
      p: () => this.goToPeak(),
      P: () => this.goToPeak(),
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in acts)) return;
    event.preventDefault();
    acts[event.key]();
  }

  /** Pinching and the control key zoom, a sideways wheel moves; anything else scrolls the page. */
  private onWheel(event: WheelEvent): void {
    if (event.ctrlKey) {
      const { left } = this.plot.over.getBoundingClientRect();
      this.zoom(Math.exp(-event.deltaY / 200), this.plot.posToVal(event.clientX - left, "x"));
    } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      const shift = ((this.to - this.from) * event.deltaX) / this.plot.over.clientWidth;
      this.view(this.from + shift, this.to + shift);
    } else return;
    event.preventDefault();
  }

  private onTouch(event: TouchEvent): void {
    const { left } = this.plot.over.getBoundingClientRect();
    this.point(event.touches[0].clientX - left);
  }
}

function asEvent(value: number): string {
  return Number.isInteger(value) ? value.toLocaleString("en") : "";
}

/** The part of rising `events` that lies between two of them, with one more at each side. */
function bounds(events: number[], from: number, to: number): [number, number] {
  return [Math.max(lowerBound(events, from) - 1, 0), Math.min(lowerBound(events, to) + 1, events.length)];
}

function lowerBound(events: number[], at: number): number {
  let [low, high] = [0, events.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (events[middle] < at) low = middle + 1;
    else high = middle;
  }
  return low;
}
