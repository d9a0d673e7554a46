// Under the memory, over the same time: one lane for each stream, with what it did when. Where nothing is drawn, it did nothing.

import type uPlot from "uplot";
import { colour, make } from "./dom";
import { lowerBound } from "./search";
import type { Clock, Packed } from "./packed";

const NAME = 16;
const BAR = 18;
const LANE = NAME + BAR + 6;
const FAINTEST = 0.2;

/** Work of a stream, or the time before it in which the stream did nothing. */
type Chosen = { lane: number; span: number; isIdle?: boolean };

export class Lanes {
  readonly element = make("div", { class: "lanes", hidden: "" });
  private readonly canvas = make("canvas", { class: "streams" });
  private readonly slider = make("div", { class: "streams-frame", tabindex: "0", role: "slider", "aria-orientation": "horizontal" });
  private readonly words = make("p", { class: "said" });
  private chosen: Chosen | null = null;
  private plot: uPlot | null = null;

  /** `follow` shows what was in use at some time; `key` does what the plot does when a key is pressed. */
  constructor(
    private readonly clock: Clock,
    private readonly packed: Packed,
    private readonly follow: (at: number) => void,
    private readonly key: (event: KeyboardEvent) => void,
  ) {
    const keys = clock.kinds.map(({ key, label }) => make("span", { class: "swatch" }, make("i", { class: `key w-${key}` }), label));
    const idle = make("span", { class: "swatch" }, make("i", { class: "key w-idle" }), "idle");
    this.slider.append(this.canvas);
    this.slider.setAttribute("aria-label", "What each stream did. Left and right go from work to work, up and down from stream to stream.");
    this.slider.setAttribute("aria-valuemin", "0");
    this.slider.setAttribute("aria-valuemax", String(clock.end));
    this.element.append(this.slider, this.words, make("p", { class: "legend quiet" }, ...keys, idle));
    this.canvas.addEventListener("mousemove", (event) => this.point(event.offsetX, event.offsetY));
    this.canvas.addEventListener("click", (event) => this.point(event.offsetX, event.offsetY));
    this.slider.addEventListener("keydown", (event) => this.onKey(event));
    this.slider.addEventListener("focus", () => this.chosen ?? this.choose(this.nearest(0, 0)));
    this.say();
  }

  /** With the same left and right end as the plot above. */
  draw(plot: uPlot): void {
    this.plot = plot;
    const { clientWidth: width } = this.slider;
    if (!width) return;
    const height = LANE * this.clock.lanes.length;
    const { canvas } = this;
    canvas.width = Math.round(width * devicePixelRatio);
    canvas.height = Math.round(height * devicePixelRatio);
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d")!;
    context.scale(devicePixelRatio, devicePixelRatio);
    context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    context.textBaseline = "middle";
    this.clock.lanes.forEach((_, lane) => this.drawLane(context, plot, lane));
  }

  private drawLane(context: CanvasRenderingContext2D, plot: uPlot, lane: number): void {
    const [left, width, top] = [plot.over.offsetLeft, plot.over.clientWidth, lane * LANE];
    context.fillStyle = colour("quiet");
    context.fillText(this.clock.lanes[lane].label, left, top + NAME / 2);
    context.fillStyle = colour("w-idle");
    context.fillRect(left, top + NAME, width, BAR);
    context.save();
    context.beginPath();
    context.rect(left, top + NAME, width, BAR);
    context.clip();
    this.drawColumns(context, plot, lane, left, top + NAME);
    context.globalAlpha = 1;
    if (this.chosen?.lane === lane && !this.chosen.isIdle) this.outline(context, plot, top);
    context.restore();
  }

  /** Each column of pixels has the colour of what is most of it, the fainter the longer the stream does nothing in it. */
  private drawColumns(context: CanvasRenderingContext2D, plot: uPlot, lane: number, left: number, top: number): void {
    const [first, size] = [Math.round(left * devicePixelRatio), 1 / devicePixelRatio];
    const fills = this.clock.kinds.map(({ key }) => colour(`w-${key}`));
    const busy = this.busyColumns(plot, lane);
    for (let column = 0; column < busy[0].length; column++) {
      const shares = busy.map((columns) => columns[column]);
      const all = shares.reduce((sum, share) => sum + share, 0);
      if (!all) continue;
      context.fillStyle = fills[shares.indexOf(Math.max(...shares))];
      context.globalAlpha = Math.min(Math.max(all, FAINTEST), 1);
      context.fillRect((first + column) * size, top, size, BAR);
    }
  }

  /** How much of each column of pixels a stream is busy, for each kind of work. */
  private busyColumns(plot: uPlot, lane: number): Float64Array[] {
    const { begins, ends, kinds, shares } = this.clock.lanes[lane];
    const [from, to] = [plot.scales.x.min!, plot.scales.x.max!];
    const numColumns = Math.round(plot.over.clientWidth * devicePixelRatio);
    const columns = (at: number) => Math.min(Math.max(((at - from) / (to - from)) * numColumns, 0), numColumns);
    const busy = this.clock.kinds.map(() => new Float64Array(numColumns));
    const number = new Map(this.clock.kinds.map(({ key }, i) => [key, i]));
    for (let span = lowerBound(ends, from); span < begins.length && begins[span] <= to; span++) {
      const [start, end, ofKind] = [columns(begins[span]), columns(ends[span]), busy[number.get(kinds[span])!]];
      for (let column = Math.floor(start); column < end; column++)
        ofKind[column] += ((Math.min(end, column + 1) - Math.max(start, column)) * shares[span]) / 100;
    }
    return busy;
  }

  private outline(context: CanvasRenderingContext2D, plot: uPlot, top: number): void {
    const { begins, ends } = this.clock.lanes[this.chosen!.lane];
    const [start, end] = [begins, ends].map((times) => plot.over.offsetLeft + plot.valToPos(times[this.chosen!.span], "x"));
    context.strokeStyle = colour("ink");
    context.lineWidth = 2;
    context.strokeRect(start - 1, top + NAME + 1, Math.max(end - start, 1) + 2, BAR - 2);
  }

  // -- the chosen work -------------------------------------------------------------------------------------------------------

  private point(x: number, y: number): void {
    if (!this.plot) return;
    const lane = Math.min(Math.max(Math.floor(y / LANE), 0), this.clock.lanes.length - 1);
    const at = this.plot.posToVal(x - this.plot.over.offsetLeft, "x");
    const span = this.spanAt(lane, at);
    const { begins, ends } = this.clock.lanes[lane];
    const reach = this.plot.posToVal(2, "x") - this.plot.posToVal(0, "x");
    this.follow(Math.max(at, 0));
    const isThere = span >= 0 && begins[span] <= at + reach && at - reach <= ends[span];
    this.choose(isThere ? { lane, span } : { lane, span: span + 1, isIdle: true });
  }

  private choose(chosen: Chosen): void {
    this.chosen = chosen;
    this.say();
    if (this.plot) this.draw(this.plot);
  }

  private say(): void {
    const { chosen } = this;
    const sentence = chosen ? this.sentence(chosen) : "Point at a stream for what it does and how long that takes.";
    this.words.textContent = sentence;
    this.slider.setAttribute("aria-valuetext", sentence);
    this.slider.setAttribute("aria-valuenow", String((chosen && this.clock.lanes[chosen.lane].begins[chosen.span]) ?? 0));
  }

  private sentence({ lane, span, isIdle }: Chosen): string {
    const { name, whatTexts, howTexts, whenTexts, idleTexts } = this.clock.lanes[lane];
    const { texts } = this.packed;
    if (isIdle) return `${name}: idle for ${texts[idleTexts[span]]}`;
    return `${name}: ${texts[whatTexts[span]]}, ${texts[howTexts[span]]}, after ${texts[whenTexts[span]]}`;
  }

  /** The last work that begins no later; -1 before all. */
  private spanAt(lane: number, at: number): number {
    return lowerBound(this.clock.lanes[lane].begins, Math.floor(at) + 1) - 1;
  }

  private nearest(lane: number, at: number): Chosen {
    return { lane, span: Math.max(this.spanAt(lane, at), 0) };
  }

  private onKey(event: KeyboardEvent): void {
    const { lane, span, isIdle } = this.chosen ?? this.nearest(0, 0);
    const far = event.shiftKey ? 10 : 1;
    const to: Record<string, () => Chosen> = {
      ArrowLeft: () => ({ lane, span: span - far }),
      ArrowRight: () => ({ lane, span: isIdle ? span : span + far }),
      ArrowUp: () => this.beside(lane, span, -1),
      ArrowDown: () => this.beside(lane, span, 1),
      Home: () => ({ lane, span: 0 }),
      End: () => ({ lane, span: Infinity }),
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in to)) return this.key(event);
    event.preventDefault();
    const next = to[event.key]();
    const last = this.clock.lanes[next.lane].begins.length - 1;
    this.choose({ lane: next.lane, span: Math.min(Math.max(next.span, 0), last) });
    this.follow(this.clock.lanes[this.chosen!.lane].begins[this.chosen!.span]);
  }

  private beside(lane: number, span: number, by: number): Chosen {
    const other = Math.min(Math.max(lane + by, 0), this.clock.lanes.length - 1);
    const at = this.clock.lanes[lane].begins[span] ?? this.clock.end;
    return other === lane ? { lane, span } : this.nearest(other, at);
  }
}
