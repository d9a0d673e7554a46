// The controls, made from what the server says there is. Nothing in here knows an optimizer or a strategy.

import { make } from "./dom";
import { type Change, type Control, type Controls, type Question, Refused, ask } from "./serve_api";

const KINDS: [Question["kind"], string, string][] = [
  ["model", "Model", "llama3-8b"],
  ["hf", "Config", "a config.json, its folder, or a name of the hub"],
  ["function", "Function", "train.py:build"],
  ["script", "Script", "train.py --batch 16"],
];

export class Form {
  readonly element = make("form", { class: "ask", autocomplete: "off" });
  private kind: Question["kind"] = "model";
  private readonly subject = make("input", { id: "subject", list: "subjects", spellcheck: "false" });
  private readonly subjects = make("datalist", { id: "subjects" });
  private readonly gpu = make("select", { id: "gpu" });
  private readonly otherGpu = make("input", { id: "other-gpu", placeholder: "24GiB, RTX-4090=48GiB, my.toml", spellcheck: "false" });
  private readonly otherRow = this.row("other-gpu", "describe it", this.otherGpu, "a card with that memory, another card with more, or a file of memfit calibrate");
  private readonly fields = new Map<string, { get: () => string; set: (value: string) => void; row: HTMLElement }>();
  private readonly kinds: HTMLButtonElement[] = [];
  private readonly drop = make("label", { class: "drop" }, "Drop a config.json here, or choose one");
  private readonly problem = make("p", { class: "alarm", role: "alert", hidden: "" });

  constructor(
    private readonly controls: Controls,
    private readonly changed: () => void,
  ) {
    this.element.addEventListener("submit", (event) => event.preventDefault());
    const file = make("input", { type: "file", accept: ".json,application/json", class: "unseen" });
    file.addEventListener("change", () => file.files?.[0] && this.take(file.files[0]));
    this.drop.append(file);
    this.element.append(this.kindRow(), this.row("subject", "What is trained", this.subject, "A name, a file, or a function of this folder"), this.subjects, this.drop, this.problem);
    for (const gpu of controls.gpus) this.gpu.append(make("option", { value: gpu.name }, gpu.text));
    this.gpu.append(make("option", { value: "" }, "another…"));
    this.gpu.addEventListener("change", () => {
      this.otherRow.hidden = this.gpu.value !== "";
      if (this.gpu.value === "") this.otherGpu.focus();
      if (this.gpu.value !== "" || this.otherGpu.value) this.changed();
    });
    this.otherGpu.addEventListener("input", () => this.changed());
    this.otherRow.hidden = true;
    this.element.append(this.row("gpu", "GPU", this.gpu, ""), this.otherRow);
    this.add({ name: "world_size", label: "how many", help: "GPUs, each with a process of its own", kind: "slider", stops: controls.worldSizes, usual: "1", isFirst: true }, this.element);
    const more = make("details", { class: "more" }, make("summary", {}, "More: meshes, schedules, engines"));
    for (const axis of controls.axes) this.add(axis, axis.isFirst ? this.element : more);
    this.add({ name: "alloc_conf", label: "allocator", help: "as in PYTORCH_CUDA_ALLOC_CONF", kind: "text", usual: "default", isFirst: false }, more);
    this.add({ name: "interconnect", label: "links", help: "how GPUs are linked: 8xH100-NVLink+400G", kind: "text", usual: "default", isFirst: false }, more);
    this.element.append(more);
    this.add({ name: "price", label: "price", help: "of one GPU for an hour: says what a million tokens cost", kind: "number", usual: "per GPU and hour", isFirst: true }, this.element);
    this.subject.addEventListener("input", () => this.changed());
    this.subject.addEventListener("focus", () => this.subject.select());
    document.addEventListener("dragover", (event) => event.preventDefault());
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      const dropped = event.dataTransfer?.files[0];
      if (dropped) this.take(dropped);
    });
    this.choose("model");
  }

  /** What the controls say. */
  question(): Question {
    const words: Record<string, string | number> = {};
    for (const axis of this.controls.axes) {
      const value = this.fields.get(axis.name)!.get();
      if (value !== "") words[axis.name] = axis.kind === "menu" || axis.kind === "text" ? value : Number(value);
    }
    const text = (name: string) => this.fields.get(name)!.get();
    return {
      kind: this.kind,
      subject: this.subject.value.trim(),
      gpu: this.gpu.value || this.otherGpu.value.trim(),
      world_size: Number(text("world_size") || 1),
      words: this.kind === "script" ? {} : words,
      price: text("price") === "" ? null : Number(text("price")),
      alloc_conf: text("alloc_conf"),
      interconnect: text("interconnect"),
    };
  }

  /** Puts a question into the controls. */
  show(question: Partial<Question>): void {
    this.choose(question.kind ?? "model");
    this.subject.value = question.subject ?? "";
    if (question.gpu) {
      const isKnown = this.controls.gpus.some((gpu) => gpu.name === question.gpu);
      this.gpu.value = isKnown ? question.gpu : "";
      this.otherGpu.value = isKnown ? "" : question.gpu;
      this.otherRow.hidden = isKnown;
    }
    const values: Record<string, unknown> = { ...question.words, world_size: question.world_size, price: question.price, alloc_conf: question.alloc_conf, interconnect: question.interconnect };
    for (const [name, field] of this.fields) field.set(values[name] === undefined || values[name] === null ? "" : String(values[name]));
  }

  /** One thing otherwise: what a button under "what makes it fit" says. */
  apply(change: Change): void {
    for (const [name, value] of Object.entries(change)) this.fields.get(name)?.set(String(value));
    this.changed();
  }

  complain(text: string): void {
    this.problem.hidden = text === "";
    this.problem.textContent = text;
  }

  private kindRow(): HTMLElement {
    for (const [kind, label] of KINDS) {
      const button = make("button", { type: "button", "data-kind": kind }, label);
      button.addEventListener("click", () => {
        this.choose(kind);
        // A function is called with what is set here, and takes arguments of its own: none of another question is left over.
        if (kind === "function") for (const axis of this.controls.axes) this.fields.get(axis.name)!.set("");
        this.subject.value = "";
        this.subject.focus();
        this.changed();
      });
      this.kinds.push(button);
    }
    return make("div", { class: "choice", role: "group", "aria-label": "What kind of thing is trained" }, ...this.kinds);
  }

  private choose(kind: Question["kind"]): void {
    this.kind = kind;
    this.kinds.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.kind === kind)));
    this.subject.placeholder = KINDS.find(([known]) => known === kind)![2];
    this.drop.hidden = kind !== "hf";
    const known = {
      model: this.controls.models.map((model) => [model.name, model.text]),
      hf: this.controls.configs.map((path) => [path, ""]),
      function: this.controls.functions.map((name) => [name, ""]),
      script: this.controls.scripts.map((name) => [name, ""]),
    }[kind];
    this.subjects.replaceChildren(...known.map(([value, label]) => make("option", { value, label: label || value })));
    for (const axis of this.controls.axes) this.fields.get(axis.name)!.row.hidden = kind === "script";
  }

  private async take(file: File): Promise<void> {
    try {
      const { subject } = await ask("/api/config", file);
      this.choose("hf");
      this.subject.value = subject;
      this.complain("");
      this.changed();
    } catch (error) {
      this.complain(error instanceof Refused ? error.message : "The server does not answer.");
    }
  }

  private row(id: string, label: string, field: HTMLElement, help: string): HTMLElement {
    return make("div", { class: "row", title: help }, make("label", { for: id }, label), field);
  }

  private add(control: Control, parent: HTMLElement): void {
    const id = `c-${control.name}`;
    const made = control.kind === "slider" ? this.slider(control, id) : this.plain(control, id);
    const row = this.row(id, control.label, made.field, control.help);
    parent.append(row);
    this.fields.set(control.name, { get: made.get, set: made.set, row });
  }

  private plain(control: Control, id: string): { field: HTMLElement; get: () => string; set: (value: string) => void } {
    let field: HTMLInputElement | HTMLSelectElement;
    if (control.kind === "menu") {
      const usual = make("option", { value: "" }, control.usual);
      field = make("select", { id }, usual, ...control.options!.map((option) => make("option", { value: option }, option)));
    } else {
      field = make("input", { id, placeholder: control.usual, ...(control.kind === "number" ? { type: "number", min: "0", step: "any", inputmode: "decimal" } : { type: "text" }) });
    }
    field.addEventListener(control.kind === "menu" ? "change" : "input", () => this.changed());
    return { field, get: () => field.value.trim(), set: (value) => (field.value = value) };
  }

  /** Over powers of two, with a number beside it for those between; a stop of 0 leaves it as usual. */
  private slider(control: Control, id: string): { field: HTMLElement; get: () => string; set: (value: string) => void } {
    const stops = control.stops!;
    const range = make("input", { type: "range", min: "0", max: String(stops.length - 1), step: "1", value: "0", "aria-label": control.label });
    const number = make("input", { id, type: "number", min: "1", step: "1", inputmode: "numeric", placeholder: control.usual });
    const follow = () => {
      const wanted = Number(number.value) || stops[0];
      const place = stops.findIndex((stop) => stop >= wanted);
      range.value = String(place < 0 ? stops.length - 1 : place);
    };
    range.addEventListener("input", () => {
      number.value = String(stops[Number(range.value)] || "");
      this.changed();
    });
    number.addEventListener("input", () => {
      follow();
      this.changed();
    });
    return {
      field: make("div", { class: "slider" }, range, number),
      get: () => number.value.trim(),
      set: (value) => {
        number.value = value;
        follow();
      },
    };
  }
}
