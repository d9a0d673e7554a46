// Memory over the run: stacked areas, a line for what is reserved, and one chosen moment.

import uPlot from "uplot";
import { type Axis, overEvents, overTime } from "./axis";
import { button, choice, colour, make } from "./dom";
import { Lanes } from "./lanes";
import { drawMarks, MARKS_HEIGHT } from "./marks";
import type { Packed, Timeline } from "./packed";
import { Readout } from "./readout";
import { bounds, lowerBound } from "./search";

const MOST_POINTS = 3200;
const ZOOM = 2;

export class Chart {
  private readonly frame = make("div", { class: "frame", tabindex: "0", role: "slider" });
  private readonly fineness = make("span", { class: "quiet" });
  private readonly marker = make("div", { class: "marker" });
  private readonly wholeButton = button("", "0", () => this.viewAll());
  private readonly readout: Readout;
  private readonly lanes: Lanes | null;
  private axis: Axis;
  private places: number[][] = [];
  private plot!: uPlot;
  private shown: number[] = [];
  private chosen: number;
  private from = 0;
  private to = 0;
  private isHeld = false;
  private readonly leftOut = new Set<number>();
  private readonly heights: number[][];

  /** `held` is told which event is held, for the address of the page. */
  constructor(
    host: HTMLElement,
    private readonly data: Timeline,
    packed: Packed,
    private readonly held: (event: number | null) => void,
  ) {
    this.readout = new Readout(data, packed, (category, isShown) => this.toggle(category, isShown));
    this.heights = data.stack.map((row, i) => (i ? row.map((place, moment) => place - data.stack[i - 1][moment]) : row));
    const overItsTime = data.startsOverTime ? overTime(data) : null;
    this.axis = overItsTime ?? overEvents(data);
    this.chosen = this.axis.peak;
    this.lanes = data.clock && new Lanes(data.clock, packed, (at) => this.follow(at), (event) => this.onKey(event));
    const chart = make("div", { class: "chart" }, this.toolbar(), this.frame, ...(this.lanes ? [this.lanes.element] : []));
    host.append(chart, this.readout.element);
    this.frame.setAttribute("aria-label", `Memory over the run. ${host.dataset.keys}`);
    this.readout.show(this.chosen);
    this.use(this.axis);
    this.listen();
  }

  /** Draws over these from now on, all of them. */
  private use(axis: Axis): void {
    const { data } = this;
    this.axis = axis;
    this.wholeButton.textContent = axis.whole;
    this.readout.isOverTime = axis.isDense;
    if (this.lanes) this.lanes.element.hidden = !axis.isDense;
    this.places = data.levels.map((level) => level.filter((moment) => moment >= axis.first).map((moment) => axis.at(moment)));
    [this.from, this.to] = [0, axis.end];
    if (this.plot) this.plot.destroy();
    this.plot = new uPlot(this.options(), this.points(0, axis.end), this.frame);
    this.plot.over.append(this.marker);
    this.listenToPlot();
    this.choose(this.chosen < axis.first ? axis.peak : this.chosen);
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
        { ...axis, grid: { show: false }, size: 24, label: this.axis.label, labelSize: 18, labelFont: font, labelGap: 0, values: (_, splits) => splits.map(this.axis.write) },
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
        draw: [
          (plot) => drawMarks(plot, data, this.axis, font, !this.leftOut.size),
          (plot) => this.placeMarker(plot),
          (plot) => this.axis.isDense && this.lanes?.draw(plot),
        ],
        setCursor: [(plot) => this.point(plot.cursor.left ?? -1)],
        setSelect: [(plot) => this.zoomToSelection(plot)],
      },
    };
  }

  /** The highest first, each down to the ground: those below are painted over it. What is narrower than a pixel is a line of one. */
  private areas(): uPlot.Series[] {
    return [...this.data.categories].reverse().map(({ key, label }) => ({
      label,
      paths: uPlot.paths.stepped!({ align: 1 }),
      fill: () => colour(`c-${key}`),
      stroke: () => colour(`c-${key}`),
      width: 1 / devicePixelRatio,
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
    const { data, places, axis } = this;
    let level = places.length - 1;
    let [first, last] = bounds(places[level], from, to);
    while (level > 0 && last - first > MOST_POINTS) {
      level -= 1;
      [first, last] = bounds(places[level], from, to);
    }
    this.fineness.textContent = data.levelTexts[level];
    const before = data.levels[level].length - places[level].length;
    this.shown = data.levels[level].slice(before + first, before + last);
    const column = (values: number[]) => this.shown.map((moment) => values[moment]);
    const areas = this.stack().map(column).reverse();
    return [this.shown.map((moment) => axis.at(moment)), ...areas, ...(data.reserved ? [column(data.reserved)] : [])];
  }

  /** Where the top of each category is, with some of them left out. */
  private stack(): number[][] {
    if (!this.leftOut.size) return this.data.stack;
    let below = this.data.events.map(() => 0);
    return this.heights.map((row, i) => (below = this.leftOut.has(i) ? below : below.map((place, moment) => place + row[moment])));
  }

  private toggle(category: number, isShown: boolean): void {
    isShown ? this.leftOut.delete(category) : this.leftOut.add(category);
    this.view(this.from, this.to);
  }

  // -- zoom ------------------------------------------------------------------------------------------------------------------

  private view(from: number, to: number): void {
    const { closest, end } = this.axis;
    const width = Math.min(Math.max(to - from, closest), end);
    const start = Math.min(Math.max((from + to - width) / 2, 0), end - width);
    [this.from, this.to] = [start, start + width];
    this.plot.batch(() => {
      this.plot.setData(this.points(this.from, this.to), false);
      this.plot.setScale("x", { min: this.from, max: this.to });
    });
    this.placeMarker();
  }

  private viewAll(): void {
    this.view(0, this.axis.end);
  }

  /** Moves what is shown such that `at` is in it. */
  private lookAt(at: number): void {
    const width = this.to - this.from;
    if (at < this.from || at > this.to) this.view(at - width / 2, at + width / 2);
  }

  /** Where something was chosen below, it is shown what was in use then. */
  private follow(at: number): void {
    this.lookAt(at);
    this.chooseAt(at);
  }

  private zoom(factor: number, around = this.axis.at(this.chosen)): void {
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
    const { peak, end, closest } = this.axis;
    const reach = Math.max(end / 40, closest);
    this.view(this.axis.at(peak) - reach, this.axis.at(peak) + reach);
    this.choose(peak);
  }

  // -- the chosen moment -----------------------------------------------------------------------------------------------------

  private choose(moment: number): void {
    this.chosen = moment;
    this.readout.show(moment);
    this.placeMarker();
    this.frame.setAttribute("aria-valuemin", "0");
    this.frame.setAttribute("aria-valuemax", String(this.axis.end));
    this.frame.setAttribute("aria-valuenow", String(this.axis.at(moment)));
    this.frame.setAttribute("aria-valuetext", this.readout.sentence(moment));
  }

  /** What is drawn at a position is the last moment before it. */
  private point(left: number): void {
    if (left >= 0 && !this.isHeld) this.chooseAt(this.plot.posToVal(left, "x"));
  }

  /** The moment of an event stays chosen until it is let go. */
  hold(event: number): void {
    const moment = Math.max(lowerBound(this.data.events, event + 1) - 1, 0);
    if (moment < this.axis.first) this.use(overEvents(this.data));
    this.setHeld(true);
    this.choose(moment);
    this.lookAt(this.axis.at(moment));
  }

  private setHeld(isHeld: boolean): void {
    this.isHeld = this.readout.isHeld = isHeld;
    this.marker.classList.toggle("held", isHeld);
  }

  private click(left: number): void {
    this.setHeld(false);
    this.point(left);
    this.setHeld(true);
    this.choose(this.chosen);
    this.held(this.data.events[this.chosen]);
  }

  private letGo(): void {
    this.setHeld(false);
    this.choose(this.chosen);
    this.held(null);
  }

  private chooseAt(at: number): void {
    const after = lowerBound(this.plot.data[0] as number[], Math.floor(at) + 1);
    this.choose(this.shown[Math.max(after - 1, 0)]);
  }

  private placeMarker(plot = this.plot): void {
    const at = this.axis.at(this.chosen);
    this.marker.hidden = at < this.from || at > this.to;
    this.marker.style.left = `${plot.valToPos(at, "x")}px`;
  }

  /** To another of the moments that are drawn; the view follows. */
  private move(by: number): void {
    const here = this.shown.findIndex((moment) => moment >= this.chosen);
    const next = this.shown[Math.min(Math.max((here < 0 ? 0 : here) + by, 0), this.shown.length - 1)];
    this.choose(next);
    this.lookAt(this.axis.at(next));
  }

  // -- hands -----------------------------------------------------------------------------------------------------------------

  private toolbar(): HTMLElement {
    const [events, time] = [overEvents(this.data), overTime(this.data)];
    const axes = time ? [choice("Drawn over", ["milliseconds", "events"], this.data.startsOverTime ? 0 : 1, (chosen) => this.use([time, events][chosen]))] : [];
    return make(
      "div",
      { class: "toolbar" },
      ...axes,
      button("Go to the peak", "P", () => this.goToPeak()),
      button("Zoom in", "+", () => this.zoom(ZOOM)),
      button("Zoom out", "−", () => this.zoom(1 / ZOOM)),
      this.wholeButton,
      this.fineness,
    );
  }

  private listenToPlot(): void {
    const { over } = this.plot;
    over.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    over.addEventListener("dblclick", () => this.viewAll());
    over.addEventListener("mousedown", (event) => this.onPress(event), { capture: true });
    for (const kind of ["touchstart", "touchmove"] as const)
      over.addEventListener(kind, (event) => this.onTouch(event), { passive: true });
  }

  private listen(): void {
    this.frame.addEventListener("keydown", (event) => this.onKey(event));
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
      "0": () => this.viewAll(),
      p: () => this.goToPeak(),
      P: () => this.goToPeak(),
      Escape: () => this.letGo(),
      Enter: () => (this.isHeld ? this.letGo() : (this.setHeld(true), this.choose(this.chosen), this.held(this.data.events[this.chosen]))),
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in acts)) return;
    event.preventDefault();
    acts[event.key]();
  }

  /** A wheel and pinching zoom, a sideways wheel moves. Zoomed out as far as it goes, the page scrolls on. */
  private onWheel(event: WheelEvent): void {
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
      const shift = ((this.to - this.from) * (event.deltaX || event.deltaY)) / this.plot.over.clientWidth;
      this.view(this.from + shift, this.to + shift);
    } else {
      if (event.deltaY > 0 && this.to - this.from >= this.axis.end) return;
      const { left } = this.plot.over.getBoundingClientRect();
      this.zoom(Math.exp(-event.deltaY / 200), this.plot.posToVal(event.clientX - left, "x"));
    }
    event.preventDefault();
  }

  /** With shift, a drag moves what is shown; without, uPlot selects what to zoom to. A press that does not move holds the moment. */
  private onPress(press: MouseEvent): void {
    if (press.button !== 0) return;
    const [from, to] = [this.from, this.to];
    const { left, width } = this.plot.over.getBoundingClientRect();
    let hasMoved = false;
    const move = (event: MouseEvent) => {
      hasMoved ||= Math.abs(event.clientX - press.clientX) > 3;
      if (press.shiftKey) this.view(from - ((event.clientX - press.clientX) / width) * (to - from), to - ((event.clientX - press.clientX) / width) * (to - from));
    };
    const release = () => {
      document.removeEventListener("mousemove", move);
      if (!hasMoved && !press.shiftKey) this.click(press.clientX - left);
    };
    if (press.shiftKey) press.stopImmediatePropagation();
    document.addEventListener("mousemove", move);
    document.addEventListener("mouseup", release, { once: true });
  }

  private onTouch(event: TouchEvent): void {
    const { left } = this.plot.over.getBoundingClientRect();
    this.point(event.touches[0].clientX - left);
  }
}
