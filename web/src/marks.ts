// What is drawn over the areas: steps and phases above them, the peak, where the GPU ends, where the run broke off.

import type uPlot from "uplot";
import type { Axis } from "./axis";
import { colour } from "./dom";
import type { Timeline } from "./packed";

export const MARKS_HEIGHT = 46;
const STRIP = 16;
const CLOSEST = 4;

/** The peak is marked where the areas reach it: not where some are left out. */
export function drawMarks(plot: uPlot, data: Timeline, axis: Axis, font: string, hasPeak: boolean): void {
  const { ctx } = plot;
  ctx.save();
  ctx.font = font.replace(/^\d+/, (size) => String(Number(size) * devicePixelRatio));
  ctx.textBaseline = "middle";
  new Marks(plot, data, axis).draw(hasPeak);
  ctx.restore();
}

class Marks {
  private readonly ctx: CanvasRenderingContext2D;
  private readonly left: number;
  private readonly right: number;
  private readonly top: number;
  private readonly bottom: number;

  constructor(private readonly plot: uPlot, private readonly data: Timeline, private readonly axis: Axis) {
    const { left, top, width, height } = plot.bbox;
    [this.ctx, this.left, this.right, this.top, this.bottom] = [plot.ctx, left, left + width, top, top + height];
  }

  draw(hasPeak: boolean): void {
    this.steps();
    this.phases();
    this.limit();
    this.end();
    if (hasPeak) this.peak();
  }

  private x(at: number): number {
    return Math.min(Math.max(this.plot.valToPos(at, "x", true), this.left), this.right);
  }

  private px(size: number): number {
    return size * devicePixelRatio;
  }

  private rule(x1: number, y1: number, x2: number, y2: number, stroke: string, dash: number[], width = 1): void {
    this.ctx.strokeStyle = stroke;
    this.ctx.lineWidth = this.px(width);
    this.ctx.setLineDash(dash.map((length) => this.px(length)));
    this.ctx.beginPath();
    this.ctx.moveTo(x1, y1);
    this.ctx.lineTo(x2, y2);
    this.ctx.stroke();
    this.ctx.setLineDash([]);
  }

  private steps(): void {
    const y = this.top - this.px(STRIP + 18);
    this.axis.steps.forEach(([at, label], i) => {
      const [start, next] = [this.x(at), this.x(this.axis.steps[i + 1]?.[0] ?? this.axis.end + 1)];
      if (next <= start) return;
      if (start > this.left && next - start > this.px(CLOSEST)) this.rule(start, y - this.px(8), start, this.bottom, colour("mark"), [3, 3]);
      if (this.fits(label, start, next)) this.write(label, start + this.px(5), y, colour("quiet"));
    });
  }

  private phases(): void {
    const y = this.top - this.px(STRIP + 6);
    for (const [first, last, label, key] of this.axis.phases) {
      const [start, end] = [this.x(first), this.x(last)];
      if (end - start < this.px(0.5)) continue;
      this.ctx.fillStyle = colour(`p-${key.replace(/^fsdp_.*/, "other")}`) || colour("p-other");
      this.ctx.fillRect(start, y, Math.max(end - start - this.px(1), this.px(0.5)), this.px(STRIP));
      if (this.fits(label, start, end)) this.write(label, start + this.px(5), y + this.px(STRIP / 2 + 0.5), colour("ink"));
    }
  }

  private limit(): void {
    if (!this.data.limit) return;
    const [place, label] = this.data.limit;
    const y = this.plot.valToPos(place, "y", true);
    this.rule(this.left, y, this.right, y, colour("bad"), [6, 4]);
    this.write(label, this.left + this.px(6), y + this.px(10), colour("bad"));
  }

  private end(): void {
    const x = this.plot.valToPos(this.axis.at(this.data.events.length - 1), "x", true);
    if (!this.data.cutShort || x > this.right + this.px(1)) return;
    this.rule(x, this.top, x, this.bottom, colour("bad"), [], 2);
    const label = "the run ended here";
    const width = this.ctx.measureText(label).width;
    this.write(label, Math.max(x - width - this.px(8), this.left), this.top + this.px(10), colour("bad"));
  }

  private peak(): void {
    const { peak } = this.axis;
    const x = this.plot.valToPos(this.axis.at(peak), "x", true);
    if (x < this.left - 1 || x > this.right + 1) return;
    const y = this.plot.valToPos(this.data.stack[this.data.stack.length - 1][peak], "y", true);
    const size = this.px(5);
    this.ctx.fillStyle = colour("ink");
    this.ctx.strokeStyle = colour("paper");
    this.ctx.lineWidth = this.px(1.5);
    this.ctx.beginPath();
    this.ctx.moveTo(x, y - this.px(1));
    this.ctx.lineTo(x - size, y - size * 1.8);
    this.ctx.lineTo(x + size, y - size * 1.8);
    this.ctx.closePath();
    this.ctx.stroke();
    this.ctx.fill();
  }

  private fits(label: string, start: number, end: number): boolean {
    return this.ctx.measureText(label).width + this.px(8) < end - start;
  }

  private write(text: string, x: number, y: number, fill: string): void {
    this.ctx.fillStyle = fill;
    this.ctx.textAlign = "left";
    this.ctx.fillText(text, x, y);
  }
}
