// The page of one run or several: plots over the steps, all linked, and tables. Data: see page/data.py.
// Whatever a run is called stays text: names reach the page through textContent and the canvas alone.
'use strict';
(() => {
const KIB = 1024, UNITS = [['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10], ['B', 1]];
const MARKS = {leak: ['\u25b6', 'growth begins'], alert: ['!', 'alerts'], oom: ['\u2715', 'out of memory'],
  killed: ['\u2715', 'last sign of life'], evaluation: ['\u25bc', 'evaluations'], checkpoint: ['\u25a0', 'checkpoints'],
  collect: ['\u25cf', 'our collections'], cache: ['\u25c6', 'cache clears'], trim: ['\u25cb', 'trims']};
const MEANINGS = {  // of parts
  python: 'anonymous memory before the first step, without the weights',
  mapped: 'files in memory: libraries, data sets, weights that are mapped',
  other: 'the rest of what was measured; on the host also freed memory that the C library keeps',
  shared: 'shared memory: batches of data workers', workers: 'pages that they share are counted once',
  activations: 'as counted in a forward pass; else how far a step, an evaluation or a checkpoint rose above what was held after it',
  gradients: 'as read before the optimizer step', cached: 'held by the device\'s allocator, by no tensor',
  leak: 'by its growth, as it was judged', wanted: 'what was asked for when memory ran out'};
const LINES = new Set(['leak', 'alert', 'oom', 'killed']);  // marks that are drawn as lines through the plot
const ACTIONS = new Set(['collect', 'cache', 'trim']), ROW = 16;  // marks in a row of their own; its height

function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === 'onclick') made.addEventListener('click', value);
    else if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const number = value => value.toLocaleString('en', {maximumFractionDigits: value < 10 ? 2 : 1});
function size(bytes) {
  const [unit, factor] = UNITS.find(([, factor]) => Math.abs(bytes) >= factor * 0.95) || UNITS[3];
  const digits = factor > 1 ? 1 : 0;
  return `${(bytes / factor).toLocaleString('en', {minimumFractionDigits: digits, maximumFractionDigits: digits})} ${unit}`;
}
function duration(seconds) {
  if (seconds < 1) return `${number(seconds * 1e3)} ms`;
  if (seconds < 90) return `${number(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 90 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, '0')} min`;
}
function unitOf(highest) {
  return UNITS.find(([, factor]) => highest >= factor * 0.95) || UNITS[3];
}
const multiplied = (values, factor) => values.map(value => value === null ? null : value * factor);
const highestOf = values => values.reduce((most, value) => value > most ? value : most, 0);
const last = values => values.length ? values[values.length - 1] : 0;

// ---- data ----

function decoded(run) {
  const steps = multiplied(run.steps, 1), times = multiplied(run.times_ms, 1e-3);
  const overSteps = [...steps];
  for (let row = 0, next; row < steps.length; row = next) {  // several records of one step stand side by side
    for (next = row + 1; next < steps.length && steps[next] === steps[row]; next++);
    for (let at = row + 1; at < next; at++) overSteps[at] += 0.5 * (at - row) / (next - row);
  }
  if (run.marks.some(mark => mark.kind === 'oom') && steps.length > 2)  // the failure takes no time, but some room
    for (const x of [overSteps, times]) x[x.length - 1] = x[x.length - 2] + Math.max(0.15 * (x[x.length - 2] - x[0]), 1e-3);
  const series = (one, factor) => ({...one, values: multiplied(one.values, factor)});
  const stacks = run.stacks.map(stack => ({...stack,
    parts: stack.parts.map(part => series(part, KIB)), phases: stack.phases.map(phase => series(phase, KIB))}));
  const band = run.band && Object.fromEntries(
    Object.entries(run.band).map(([key, values]) => [key, multiplied(values, key === 'most' ? 1 : KIB)]));
  return {...run, steps, times, overSteps, stacks, band, pauses: run.pauses.map(one => series(one, 1e-6))};
}

function xOfStep(run, step, overTime) {  // where something that has only a step stands
  if (!overTime) return step;
  let low = 0, high = run.steps.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (run.steps[middle] < step) low = middle + 1; else high = middle;
  }
  return run.times[low] || 0;
}

// ---- the page ----

class Page {
  constructor(root, runs) {
    this.root = root;
    this.overTime = false;
    this.hidden = new Set();
    this.zoom = null;
    this.shown = 0;
    this.theme = this.stored('theme') || 'auto';
    this.dark = matchMedia('(prefers-color-scheme: dark)');
    this.dark.addEventListener('change', () => this.setTheme(this.theme));
    this.plots = [];
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(root);
    this.setTheme(this.theme, true);
    this.update(runs);
  }

  stored(name) {
    try { return localStorage.getItem(`forgather_mem.${name}`); } catch { return null; }
  }

  setTheme(theme, first = false) {
    this.theme = theme;
    try { localStorage.setItem('forgather_mem.theme', theme); } catch { /* kept for this visit only */ }
    const dark = theme === 'dark' || (theme === 'auto' && this.dark.matches);
    document.documentElement.setAttribute('data-theme', dark ? 'dark' : 'light');
    this.colours = {};
    if (!first) for (const plot of this.plots) plot.u.redraw(true, true);
    if (this.themeButton) this.themeButton.textContent = dark ? 'light' : 'dark';
  }

  colour(key) {
    const known = this.colours[key];
    if (known) return known;
    const style = getComputedStyle(document.documentElement);
    return this.colours[key] = style.getPropertyValue(`--${key}`).trim() || style.getPropertyValue('--other').trim();
  }

  update(runs, others = false) {  // with the data of all runs; zoom, axis and hidden parts stay
    if (others) this.zoom = null;  // it was of another run's steps
    this.runs = runs.map(decoded);
    this.shown = Math.min(this.shown, this.runs.length - 1);
    this.render();
  }

  get run() { return this.runs[this.shown]; }

  render() {
    const run = this.run, top = window.scrollY, places = () => [...this.root.querySelectorAll('button, select, .plot, pre')];
    const focused = places().indexOf(document.activeElement), pointed = this.plots.map(plot => plot.u.cursor.left);
    for (const plot of this.plots) plot.u.destroy();
    this.plots = [];
    this.spoken = make('div', {class: 'sr', role: 'status', 'aria-live': 'polite'});
    this.root.replaceChildren(this.bar(), ...this.headline(run), this.plotSection(), this.spoken,
      this.tableSection(run), ...this.reportText(run));
    document.title = `${run.name}: where the memory went`;
    this.draw();
    window.scrollTo(0, top);
    places()[focused]?.focus({preventScroll: true});
    this.plots.forEach((plot, index) => { if (pointed[index] >= 0) plot.u.setCursor({left: pointed[index], top: 1}); });
  }

  bar() {
    const run = this.run, bar = make('div', {class: 'bar'});
    bar.append(make('span', {class: 'name'}, `${run.script}${run.rank === null ? '' : `, rank ${run.rank}`}`));
    if (this.runs.length > 1) {
      const select = make('select', {'aria-label': 'run'});
      this.runs.forEach((one, index) => select.append(make('option', {value: index}, one.name)));
      select.value = this.shown;
      select.addEventListener('change', () => { this.shown = Number(select.value); this.zoom = null; this.render(); });
      bar.append(select);
    }
    for (const [label, overTime] of [['steps', false], ['time', true]]) {
      bar.append(make('button', {class: 'choice', type: 'button', 'aria-pressed': String(this.overTime === overTime),
        title: overTime ? 'over the time since the process began, with what was before the first step' : 'over the steps',
        onclick: () => { this.overTime = overTime; this.zoom = null; this.render(); }}, label));
    }
    bar.append(make('button', {type: 'button', 'aria-label': 'zoom in', onclick: () => this.zoomBy(0.5)}, '+'),
      make('button', {type: 'button', 'aria-label': 'zoom out', onclick: () => this.zoomBy(2)}, '\u2212'),
      make('button', {type: 'button', 'aria-label': 'show everything',
        title: 'drag in a plot to zoom, double-click to show everything; arrow keys move along a plot',
        onclick: () => this.setZoom(null)}, 'all'));
    const dark = document.documentElement.getAttribute('data-theme') === 'dark';
    this.themeButton = make('button', {type: 'button', 'aria-label': 'switch between light and dark',
      onclick: () => this.setTheme(this.themeButton.textContent)}, dark ? 'light' : 'dark');
    bar.append(this.themeButton);
    return bar;
  }

  headline(run) {
    return [make('h1', {class: run.kind}, make('span', {class: 'badge'}, run.badge), run.verdict),
      make('p', {class: 'more'}, run.more)];
  }

  plotSection() {
    this.figures = make('section', {'aria-label': 'plots'});
    return this.figures;
  }

  draw() {
    const run = this.run, makers = run.stacks.flatMap(stack => [() => new StackPlot(this, run, stack),
      ...(stack.phases.length ? [() => new PhasePlot(this, run, stack)] : [])]);
    if (run.pauses.length) makers.push(() => new PausePlot(this, run));
    if (run.band) makers.push(() => new BandPlot(this, run));
    if (this.runs.length > 1) this.comparison();
    if (!run.steps.length) {
      this.figures.append(make('p', {}, 'No training step was read, so there are no curves.'));
      return;
    }
    const drawRest = () => {
      if (run !== this.run) return;  // meanwhile another one is shown
      this.plots.push(...makers.map(made => made()));
      if (this.zoom) this.setZoom(this.zoom);
    };
    if (this.drawn) { drawRest(); return; }
    this.plots.push(makers.shift()());  // the answer first
    this.drawn = true;
    requestAnimationFrame(() => setTimeout(drawRest));
  }

  comparison() {
    for (const place of new Set(this.runs.flatMap(run => run.stacks.map(stack => stack.place))))
      if (this.runs.filter(run => run.stacks.some(stack => stack.place === place)).length > 1)
        this.plots.push(new ComparisonPlot(this, place));
  }

  resize() {
    if (this.width === this.figures?.clientWidth) return;
    this.width = this.figures?.clientWidth;
    for (const plot of this.plots) plot.u.setSize({width: this.width, height: plot.height});
  }

  // ---- what all plots do together ----

  setZoom(zoom) {
    this.zoom = zoom;
    this.zooming = true;
    for (const plot of this.plots) {
      const [low, high] = zoom || plot.wholeX();
      plot.u.setScale('x', {min: low, max: high});
    }
    this.zooming = false;
  }

  zoomed(u) {
    if (this.zooming || u.status !== 1) return;
    const {min, max} = u.scales.x;
    const plot = this.plots.find(one => one.u === u);
    if (!plot) return;
    const [low, high] = plot.wholeX();
    this.setZoom(min <= low && max >= high ? null : [min, max]);
  }

  zoomBy(factor, centre = null) {
    const plot = this.plots.find(one => !one.isComparison) || this.plots[0];
    if (!plot) return;
    const [low, high] = plot.wholeX(), [from, to] = this.zoom || [low, high];
    const middle = centre ?? (from + to) / 2, half = (to - from) * factor;
    const begin = Math.max(low, middle - half * (middle - from) / (to - from || 1));
    this.setZoom(half >= high - low ? null : [begin, Math.min(high, begin + half)]);
  }
}

// ---- plots ----

class Plot {
  constructor(page, run, title, height, about = '') {
    Object.assign(this, {page, run, title, height});
    this.readout = make('span', {class: 'readout', 'aria-hidden': 'true'});
    this.caption = make('figcaption', {}, title, make('span', {}, about), this.readout);
    this.box = make('div', {class: 'plot', tabindex: '0', role: 'application', 'aria-label': title});
    this.legend = make('ul', {class: 'legend', 'aria-label': `${title}: legend`});
    this.figure = make('figure', {}, this.caption, this.box, this.legend);
    page.figures.append(this.figure);
    this.box.addEventListener('keydown', event => this.key(event));
    this.values = [];
  }

  get offset() { return this.page.overTime ? this.run.startup.length : 0; }  // rows before the first of the log

  x() {
    const run = this.run;
    return this.page.overTime ? [...run.startup.map(([ms]) => ms / 1e3), ...run.times] : run.overSteps;
  }

  aligned(values, before = null) {
    return this.offset ? [...Array(this.offset).fill(before), ...values] : values;
  }

  wholeX() {
    const x = this.u.data[0];
    return x.length > 1 && last(x) > x[0] ? [x[0], last(x)] : [x[0] - 1, x[0] + 1];
  }

  start(data, series, scales, options = {}) {
    const page = this.page, colour = key => () => page.colour(key);
    const axis = {stroke: colour('soft'), grid: {stroke: colour('edge'), width: 1}, ticks: {show: false}, font: '12px system-ui'};
    const width = page.figures.clientWidth;
    page.width = width;
    this.u = new uPlot({
      width, height: this.height, series: [{}, ...series], padding: [options.top || 8, 30, 0, 0],  // to the right half of a label of the axis
      scales: {x: {time: false, range: (u, low, high) => low === null || low === high ? [(low ?? 0) - 1, (low ?? 0) + 1]
        : [low, high]}, ...scales},
      axes: [{...axis, show: !options.bare, size: 26, space: 70, values: (u, ticks) => this.xLabels(ticks)},
        {...axis, size: 64, gap: 4, space: 42, values: (u, ticks) => ticks.map(tick => this.yLabel(tick)), ...options.yAxis}],
      legend: {show: false},
      cursor: {sync: {key: 'forgather_mem', scales: ['x', null]}, drag: {x: true, y: false, setScale: true}, y: false,
        points: {show: false}, bind: {}},
      hooks: {setCursor: [u => this.point(u.cursor.idx ?? null)], setScale: [(u, key) => key === 'x' && page.zoomed(u)],
        draw: [u => this.paint(u)]},
      bands: options.bands,
    }, data, this.box);
    this.u.root.setAttribute('aria-hidden', 'true');
    this.point(null);
  }

  xLabels(ticks) {
    if (this.page.overTime) return ticks.map(duration);
    const labels = ticks.map(tick => Number.isInteger(tick) ? tick.toLocaleString('en') : ''), first = labels.findIndex(Boolean);
    return labels.map((label, at) => at === first ? `step ${label}` : label);
  }
  yLabel(value) { return number(value); }
  text(ctx, text, x, y, key, ratio) {  // readable on any colour
    const wide = ctx.measureText(text).width, left = x - (ctx.textAlign === 'right' ? wide : ctx.textAlign === 'center' ? wide / 2 : 0);
    ctx.globalAlpha = 0.85;
    ctx.fillStyle = this.page.colour('page');
    ctx.fillRect(left - 3 * ratio, y - 8 * ratio, wide + 6 * ratio, 15.5 * ratio);
    ctx.globalAlpha = 1;
    ctx.fillStyle = this.page.colour(key);
    ctx.fillText(text, x, y);
  }

  paint() {}

  describe(row) {
    const at = row - this.offset, run = this.run;
    if (at < 0) return `before step 0, ${duration(run.startup[row][0] / 1e3)} after the process began`;
    return `step ${run.steps[at].toLocaleString('en')}, ${duration(run.times[at])} after the process began`;
  }

  point(row) {
    if (this.u && this.u.cursor.left < 0) row = null;
    const at = row === null ? this.run.steps.length - 1 : row - this.offset;
    for (const [element, read, rest] of this.values) element.textContent = row === null && rest ? rest : at < 0 ? '' : read(at);
    this.readout.textContent = row === null || this.isComparison ? '' : this.describe(row);
  }

  entry(key, label, read, options = {}) {  // an entry of the legend, which hides its part if it has a name
    const value = make('b'), name = `${this.title}/${key}`;
    const content = [make('i', {}, options.sign || ''), make('span', {class: 'label'}, label), value];
    const shown = !this.page.hidden.has(name);
    const kind = `${options.kind || ''}${key.startsWith('leak') && !options.kind ? ' holder' : ''}`;
    const element = options.fixed ? make('span', {class: `entry ${kind}`}, ...content)
      : make('button', {type: 'button', class: kind, 'aria-pressed': String(shown),
        title: MEANINGS[key.replace(/\d/, '')] || 'show or hide',
        onclick: () => {
          this.page.hidden[shown ? 'add' : 'delete'](name);
          this.rebuild();
        }}, ...content);
    element.style.setProperty('--c', `var(--${options.colour || key})`);
    this.legend.append(make('li', {}, element));
    if (read) this.values.push([value, read, options.rest]);
    return shown;
  }

  rebuild() {
    const {page, figure} = this, index = page.plots.indexOf(this);
    const focused = [...this.legend.querySelectorAll('button')].indexOf(document.activeElement);
    this.u.destroy();
    const made = this.again();
    figure.replaceWith(made.figure);
    page.plots[index] = made;
    if (page.zoom) page.setZoom(page.zoom);
    made.legend.querySelectorAll('button')[focused]?.focus();
  }

  key(event) {
    const {u, page} = this, rows = u.data[0].length;
    const moves = {ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -rows, End: rows};
    let row = u.cursor.left >= 0 && u.cursor.idx !== null ? u.cursor.idx : rows - 1;
    if (event.key in moves) row = Math.min(rows - 1, Math.max(0, row + moves[event.key] * (event.shiftKey ? 10 : 1)));
    else if (event.key === '+' || event.key === '=') { page.zoomBy(0.5, u.data[0][row]); event.preventDefault(); return; }
    else if (event.key === '-') { page.zoomBy(2, u.data[0][row]); event.preventDefault(); return; }
    else if (event.key === 'Escape' || event.key === '0') { page.setZoom(null); return; }
    else return;
    event.preventDefault();
    u.setCursor({left: u.valToPos(u.data[0][row], 'x'), top: 1}, true, true);
    page.spoken.textContent = `${this.describe(row)}: ${this.spoken(row)}`;
  }

  spoken() {
    return [...this.legend.querySelectorAll('.label')].map(label => `${label.textContent} ${label.nextSibling.textContent}`).join(', ');
  }
}

class StackPlot extends Plot {
  constructor(page, run, stack) {
    super(page, run, stack.title, Math.round(Math.min(720, Math.max(300, innerHeight * 0.42))),
      stack.limit ? `of ${size(stack.limit.bytes)}, ${stack.limit.label}` : '');
    this.stack = stack;
    const parts = [...stack.parts].reverse();
    const total = run.steps.map((_, row) => stack.parts.reduce((sum, part) => sum + (part.values[row] || 0), 0));
    this.total = total;
    const shown = parts.filter(part => this.entry(part.key, part.label, row => size(part.values[row] || 0), {colour: part.key}));
    if (stack.place === 'host' && page.overTime && run.startup.length)
      this.entry('startup', 'before the first step', null, {fixed: true, colour: 'startup'});
    this.entry('total', 'together', row => size(total[row]), {fixed: true, colour: 'ink', kind: 'line'});
    this.fixedEntries();
    this.fill(shown);
    this.box.setAttribute('aria-label', `${stack.title} over ${page.overTime ? 'time' : 'steps'}: ${this.summary()}`);
  }

  again() { return new StackPlot(this.page, this.run, this.stack); }

  summary() {
    const {stack, total} = this, parts = stack.parts.map(part => `${part.label} ${size(last(part.values) || 0)}`).join(', ');
    return `${stack.peak ? `${stack.peak.text}; ` : ''}at the end ${size(last(total))}: ${parts}`;
  }

  fixedEntries() {
    const {limit, planned} = this.stack;
    if (limit) this.entry('limit', limit.label, () => size(limit.bytes), {fixed: true, colour: 'ink', kind: 'line'});
    if (planned) this.entry('planned', planned.label, () => size(planned.bytes), {fixed: true, colour: 'soft', kind: 'line'});
    for (const [kind, [sign, label]] of Object.entries(MARKS)) {
      const count = this.run.marks.filter(mark => mark.kind === kind).length;
      if (count) this.entry(kind, label, null, {fixed: true, sign, kind: 'mark', colour: kind});
    }
  }

  fill(shown) {
    const {stack, run, page} = this, before = stack.place === 'host' && page.overTime ? run.startup : [];
    const sums = [], rows = run.steps.length;
    let below = new Array(rows).fill(0);
    for (const part of [...shown].reverse()) {  // from the lowest to the highest
      below = below.map((sum, row) => sum + (part.values[row] || 0));
      sums.unshift(below);
    }
    this.shown = shown;
    const highest = Math.max(highestOf(this.total), highestOf(before.map(([, kib]) => kib * KIB)), stack.peak?.bytes || 0,
      stack.planned?.bytes || 0);
    [this.unit, this.factor] = unitOf(highest);
    const {limit} = stack;
    this.withLimit = limit && limit.bytes < 2.2 * highest && limit.bytes > 1.1 * highest;
    this.top = (limit && limit.bytes < 2.2 * highest ? Math.max(highest, limit.bytes) : highest) / this.factor;
    const data = [this.x(), ...sums.map(sum => this.aligned(sum.map(value => value / this.factor), null))];
    const series = shown.map((part, index) => ({scale: 'y', stroke: () => page.colour('page'), width: index ? 0.5 : 0,
      fill: () => page.colour(part.key), points: {show: false}}));
    if (before.length) {
      const sizes = before.map(([, kib]) => kib * KIB / this.factor);
      data.splice(1, 0, [...sizes, last(sizes), ...new Array(rows - 1).fill(null)]);  // up to the first row
      series.unshift({scale: 'y', stroke: () => page.colour('startup'), fill: () => page.colour('startup'), points: {show: false}});
    }
    const rowOf = kind => ACTIONS.has(kind) ? 2 : kind === 'checkpoint' ? 1 : 0;  // what happens at one step covers nothing else
    const used = [...new Set(run.marks.map(mark => rowOf(mark.kind)))].sort().reverse();  // the lowest first
    this.rowOf = kind => used.indexOf(rowOf(kind));
    this.start(data, series, {y: {range: () => this.yRange()}}, {top: ROW * Math.max(1, used.length) + 10});
  }

  yRange() {  // from 0 to above what is shown
    const {page} = this;
    if (!page.zoom) return [0, this.top * (this.withLimit ? 1.06 : 1.24) || 1];
    const [low, high] = page.zoom, x = this.x(), sums = this.u?.data[1] || [];
    let most = 0;
    for (let row = 0; row < x.length; row++) if (x[row] >= low && x[row] <= high && sums[row] > most) most = sums[row];
    return [0, most * 1.24 || this.top || 1];
  }

  yLabel(value) { return `${number(value)} ${this.unit}`; }

  describe(row) {
    const at = row - this.offset;
    if (at < 0) return `${super.describe(row)}: ${size(this.run.startup[row][1] * KIB)} resident`;
    return `${super.describe(row)}: ${size(this.total[at])}`;
  }

  spoken(row) {
    return this.shown.map(part => `${part.label} ${size(part.values[row - this.offset] || 0)}`).join(', ');
  }

  paint(u) {
    const {ctx} = u, ratio = devicePixelRatio, {left, top, width, height} = u.bbox, {page, run, stack} = this;
    const tools = {u, ctx, ratio, left, top, right: left + width, bottom: top + height};
    ctx.save();
    ctx.font = `${12 * ratio}px system-ui, sans-serif`;
    ctx.textBaseline = 'middle';
    this.maxima(tools);
    this.bandLabels(tools);
    if (stack.limit) this.across(tools, stack.limit.bytes, `${stack.limit.label} ${size(stack.limit.bytes)}`, 'ink');
    if (stack.planned) this.across(tools, stack.planned.bytes, `${stack.planned.label} ${size(stack.planned.bytes)}`, 'soft');
    this.marks(tools);
    if (stack.peak) this.pin(tools);
    ctx.restore();
  }

  maxima({u, ctx, ratio, left, right, top, bottom}) {  // of each column of pixels the highest row, however narrow it is
    const first = u.data.length - this.shown.length, [x, whole] = [u.data[0], u.data[first]], columns = new Map();
    if (!this.shown.length) return;
    const wide = Math.max(1, Math.round(ratio)), final = u.valToIdx(u.scales.x.max);
    for (let row = u.valToIdx(u.scales.x.min); row <= final; row++) {
      const at = Math.round(u.valToPos(x[row], 'x', true));
      if (whole[row] === null || at < left || at > right) continue;
      const found = columns.get(at);
      if (found) found.end = row;
      if (!found) columns.set(at, {row, least: whole[row], begin: row, end: row});
      else if (whole[row] > whole[found.row]) found.row = row;
      else if (whole[row] < found.least) found.least = whole[row];
    }
    const yOf = value => Math.max(top, Math.min(bottom, u.valToPos(value, 'y', true)));
    ctx.lineWidth = wide;
    ctx.strokeStyle = this.page.colour('ink');
    ctx.beginPath();
    let before = null;
    for (const [at, {row, least, begin, end}] of columns) {
      const highest = yOf(whole[row]);
      if (yOf(least) - highest > ratio) this.shown.forEach((part, index) => {
        const upper = yOf(u.data[first + index][row]);
        ctx.fillStyle = this.page.colour(part.key);
        ctx.fillRect(at - (wide >> 1), upper, wide, (index + 1 < this.shown.length ? yOf(u.data[first + index + 1][row]) : bottom) - upper);
      });
      const x = at + wide % 2 / 2;
      if (before && x - before.x > wide) {  // between columns that are apart it is as straight as the parts are
        ctx.lineTo(before.x, yOf(whole[before.end]));
        ctx.lineTo(x, yOf(whole[begin]));
      }
      ctx.lineTo(x, highest);
      before = {x, end};
    }
    ctx.stroke();
  }

  across({u, ctx, ratio, left, top, right}, bytes, text, key) {
    const y = u.valToPos(bytes / this.factor, 'y', true);
    if (y < top) return;
    ctx.strokeStyle = this.page.colour(key);
    ctx.lineWidth = 1.5 * ratio;
    ctx.setLineDash([7 * ratio, 5 * ratio]);
    ctx.beginPath(); ctx.moveTo(left, y); ctx.lineTo(right, y); ctx.stroke();
    ctx.setLineDash([]);
    ctx.textAlign = 'center';
    if (right - left > 480 * ratio) this.text(ctx, text, left + (right - left) * 0.45, y - 9 * ratio, key, ratio);
  }

  bandLabels({u, ctx, ratio, left, right, top, bottom}) {
    const first = u.data.length - this.shown.length, x = u.data[0];
    ctx.textAlign = 'right';
    for (let index = 0; index < this.shown.length; index++) {
      const upper = u.data[first + index], lower = u.data[first + index + 1], {label} = this.shown[index];
      let row = u.valToIdx(u.scales.x.max);
      if (x[row] > u.scales.x.max) row--;
      const end = u.valToPos(x[row], 'x', true);
      if (upper[row] === null || end > right + 1) continue;
      const high = Math.max(top, u.valToPos(upper[row], 'y', true));
      const low = Math.min(bottom, lower ? u.valToPos(lower[row], 'y', true) : bottom);
      const wide = ctx.measureText(label).width + 16 * ratio, at = u.posToIdx((end - wide - left) / ratio), middle = (low + high) / 2;
      const begins = end - wide > left && upper[at] !== null && u.valToPos(upper[at], 'y', true) < middle - 7 * ratio
        && (!lower || u.valToPos(lower[at] || 0, 'y', true) > middle + 7 * ratio);
      if (begins && low - high > 15 * ratio)
        this.onBand(ctx, label, end - 8 * ratio, (low + high) / 2, this.shown[index].key);
    }
  }

  onBand(ctx, text, x, y, key) {
    const [red, green, blue] = this.page.colour(key).match(/[0-9a-f]{2}/gi).map(part => parseInt(part, 16));
    ctx.fillStyle = 0.3 * red + 0.59 * green + 0.11 * blue > 130 ? '#101418' : '#fff';
    ctx.fillText(text, x, y);
  }

  marks({u, ctx, ratio, left, right, top, bottom}) {
    ctx.textAlign = 'center';
    const seen = {};
    const holds = this.stack.parts.some(part => part.key.startsWith('leak'));
    for (const mark of this.run.marks) {
      if (mark.kind === 'leak' && !holds) continue;
      const at = Math.min(xOfStep(this.run, mark.step, this.page.overTime), last(u.data[0]));  // a kill comes after the last record
      const x = u.valToPos(at, 'x', true);
      if (x < left - 1 || x > right + 1) continue;
      ctx.fillStyle = ctx.strokeStyle = this.page.colour(mark.kind);
      if (LINES.has(mark.kind)) {
        ctx.lineWidth = 1.5 * ratio;
        ctx.setLineDash(mark.kind === 'alert' ? [2 * ratio, 4 * ratio] : []);
        ctx.beginPath(); ctx.moveTo(x, top - 4 * ratio); ctx.lineTo(x, bottom); ctx.stroke();
        ctx.setLineDash([]);
      }
      if (seen[mark.kind] !== undefined && x - seen[mark.kind] < 5 * ratio) continue;
      seen[mark.kind] = x;
      ctx.fillText(MARKS[mark.kind][0], x, top - (12 + ROW * this.rowOf(mark.kind)) * ratio);
      if (mark.kind === 'leak') {
        const toRight = x + ctx.measureText(mark.text).width + 20 * ratio < right;
        ctx.textAlign = toRight ? 'left' : 'right';
        this.text(ctx, mark.text, x + (toRight ? 9 : -9) * ratio, top + 9 * ratio, 'leak', ratio);
        ctx.textAlign = 'center';
      }
    }
  }

  pin({u, ctx, ratio, left, right, top}) {
    const {peak} = this.stack, overTime = this.page.overTime;
    if (peak.startup && !overTime) return;
    const x = u.valToPos(xOfStep(this.run, peak.step, overTime), 'x', true), y = u.valToPos(peak.bytes / this.factor, 'y', true);
    if (x < left - 1 || x > right + 1 || y < top - 20 * ratio) return;
    const room = Math.max(x - left, right - x) - 8 * ratio, fits = line => line && ctx.measureText(line).width < room;
    const lines = [fits(peak.text) ? peak.text : peak.text.split(',')[0], peak.reason].filter(fits);
    const wide = Math.max(0, ...lines.map(line => ctx.measureText(line).width));
    ctx.textAlign = x + wide + 4 * ratio < right ? 'left' : 'right';
    const above = row => Math.max(y - (15 * (lines.length - row) - 2) * ratio, top + (24 + 15 * row) * ratio);
    lines.forEach((line, row) => this.text(ctx, line, x, above(row), 'ink', ratio));
    ctx.fillStyle = this.page.colour('page');
    ctx.strokeStyle = this.page.colour('ink');
    ctx.lineWidth = 2 * ratio;
    ctx.beginPath(); ctx.arc(x, y, 4.5 * ratio, 0, 7); ctx.fill(); ctx.stroke();
  }
}

class PhasePlot extends Plot {  // a strip for each phase: the stronger, the higher its peak was
  constructor(page, run, stack) {
    super(page, run, `Peak in each phase, ${stack.title.replace('Memory of ', 'on ')}`, 26 + 8 + 17 * stack.phases.length,
      'darker = higher; blank = no rise');
    Object.assign(this, {stack, phases: [...stack.phases].reverse()});
    this.most = Math.max(...stack.phases.map(phase => highestOf(phase.values)));
    const lowestOf = values => values.reduce((low, value) => value !== null && value < low ? value : low, Infinity);
    this.least = Math.min(...stack.phases.map(phase => lowestOf(phase.values)));
    for (const phase of stack.phases)
      this.entry(phase.key, phase.label, row => this.latest(phase, row), {fixed: true, kind: 'plain'});
    this.start([this.x(), this.aligned(run.steps.map(() => 0))], [{scale: 'y', paths: () => null, points: {show: false}}],
      {y: {range: () => [0, stack.phases.length]}},
      {yAxis: {grid: {show: false}, splits: () => this.phases.map((_, row) => row + 0.5),
        values: () => this.phases.map(phase => phase.key)}});
  }

  again() { return new PhasePlot(this.page, this.run, this.stack); }

  latest(phase, row) {
    while (row > 0 && phase.values[row] === null) row--;
    return phase.values[row] === null ? '' : size(phase.values[row]);
  }

  paint(u) {
    const {ctx} = u, {left, width} = u.bbox, x = u.data[0], wide = Math.max(2, 2 * devicePixelRatio);
    ctx.save();
    ctx.fillStyle = this.page.colour('phase');
    this.phases.forEach((phase, place) => {
      const y = u.valToPos(place + 0.92, 'y', true), high = u.valToPos(place + 0.08, 'y', true) - y, columns = new Map();
      phase.values.forEach((value, row) => {
        if (value === null) return;
        const at = Math.floor((u.valToPos(x[row + this.offset], 'x', true) - left) / wide);
        if (at >= 0 && at * wide < width && !(columns.get(at) >= value)) columns.set(at, value);
      });
      for (const [at, value] of columns) {
        ctx.globalAlpha = 0.3 + 0.7 * (value - this.least) / (this.most - this.least || 1);
        ctx.fillRect(left + at * wide, y, wide, high);
      }
    });
    ctx.restore();
  }
}

class PausePlot extends Plot {
  constructor(page, run) {
    super(page, run, 'Pauses of Python\'s collector, and our actions', 130);
    this.shown = run.pauses.filter(one => this.entry(one.key, one.label, row => duration(one.values[row] || 0),
      {rest: `at most ${duration(highestOf(one.values))}`}));
    const most = Math.max(0, ...run.pauses.map(one => highestOf(one.values)));
    this.start([this.x(), ...this.shown.map(one => this.aligned(one.values.map(value => (value || 0) * 1e3)))],
      this.shown.map(() => ({scale: 'y', paths: () => null, points: {show: false}})), {y: {range: () => [0, most * 1.1e3 || 1]}});
  }

  again() { return new PausePlot(this.page, this.run); }
  yLabel(value) { return `${number(value)} ms`; }

  paint(u) {
    const {ctx} = u, {left, top, width, height} = u.bbox, x = u.data[0];
    ctx.save();
    ctx.lineWidth = 1.5 * devicePixelRatio;
    this.shown.forEach((one, index) => {
      const values = u.data[index + 1], columns = new Map();
      for (let row = 0; row < x.length; row++) {
        const at = Math.round(u.valToPos(x[row], 'x', true));
        const inside = at >= left - 1 && at <= left + width + 1;
        if (inside && values[row] > 0 && !(columns.get(at) >= values[row])) columns.set(at, values[row]);
      }
      ctx.strokeStyle = this.page.colour(one.key);
      ctx.beginPath();
      for (const [at, value] of columns) { ctx.moveTo(at, top + height); ctx.lineTo(at, u.valToPos(value, 'y', true)); }
      ctx.stroke();
    });
    ctx.restore();
  }
}

class BandPlot extends Plot {
  constructor(page, run) {
    super(page, run, 'Lowest and highest rank', 170);
    const {low, high, most} = run.band, highest = highestOf(high);
    [this.unit, this.factor] = unitOf(highest);
    this.entry('high', 'highest', row => `${size(high[row] || 0)}, rank ${most[row]}`, {fixed: true, colour: 'ink', kind: 'line'});
    this.entry('low', 'lowest', row => size(low[row] || 0), {fixed: true, colour: 'soft', kind: 'line'});
    const line = key => ({scale: 'y', stroke: () => page.colour(key), width: 1.8, points: {show: false}, spanGaps: true});
    const scaled = values => this.aligned(values.map(value => value === null ? null : value / this.factor));
    this.start([this.x(), scaled(high), scaled(low)], [line('ink'), line('soft')],
      {y: {range: () => [0, highest / this.factor * 1.1 || 1]}},
      {bands: [{series: [1, 2], fill: () => `${page.colour('ink')}33`}]});
  }

  again() { return new BandPlot(this.page, this.run); }
  yLabel(value) { return `${number(value)} ${this.unit}`; }

  paint(u) {
    const {ctx} = u, ratio = devicePixelRatio, {most, high} = this.run.band;
    const row = Math.min(u.valToIdx(u.scales.x.max) - this.offset, most.length - 1);
    if (row < 0 || high[row] === null) return;
    ctx.save();
    ctx.font = `${12 * ratio}px system-ui, sans-serif`;
    ctx.textBaseline = 'middle';
    ctx.textAlign = 'right';
    const y = u.valToPos(high[row] / this.factor, 'y', true) + 14 * ratio;
    this.text(ctx, `rank ${most[row]} has most`, u.bbox.left + u.bbox.width - 6 * ratio, y, 'ink', ratio);
    ctx.restore();
  }
}

class ComparisonPlot extends Plot {  // the runs in one plot: everything together of each
  constructor(page, place) {
    const found = page.runs.map((run, index) => ({run, index, stack: run.stacks.find(stack => stack.place === place)}))
      .filter(one => one.stack);
    super(page, page.run, `${found[0].stack.title}, ${page.runs.length} runs`, 300);
    Object.assign(this, {place, isComparison: true});
    const rising = times => times.map((time, row) => row && time <= times[row - 1] ? time + row * 1e-9 : time);
    const tables = found.map(({run, stack}) => [page.overTime ? rising(run.times) : run.overSteps,
      run.steps.map((_, row) => stack.parts.reduce((sum, part) => sum + (part.values[row] || 0), 0))]);
    const highest = Math.max(...tables.map(([, totals]) => highestOf(totals)));
    [this.unit, this.factor] = unitOf(highest);
    const joined = uPlot.join(tables);
    this.start([joined[0], ...joined.slice(1).map(values => values.map(value => value == null ? value : value / this.factor))],
      found.map(({index}) => ({scale: 'y', stroke: () => page.colour(`run${index % 6}`), width: 2, points: {show: false}, spanGaps: true,
        dash: index >= 6 ? [6, 4] : undefined})), {y: {range: () => [0, highest / this.factor * 1.08 || 1]}});
    found.forEach(({run, index, stack}) => this.entry(`run${index}`, run.name, () => stack.peak ? stack.peak.text : '',
      {fixed: true, colour: `run${index % 6}`, kind: 'line'}));
    this.point(null);
  }

  again() { return new ComparisonPlot(this.page, this.place); }
  yLabel(value) { return `${number(value)} ${this.unit}`; }
  describe() { return ''; }
}

// ---- below the plots ----

const CODE = new Set(['held by', 'made at', 'the line', 'where', 'command', 'each is']);

Page.prototype.tableSection = function (run) {
  const section = make('section', {class: 'tables', 'aria-label': 'tables'});
  const kind = (cell, name) => CODE.has(name) ? (cell.length < 28 ? 'code short' : 'code') : cell.length < 28 ? 'short' : 'long';
  for (const {title, header, rows} of run.tables) {
    const table = make('table', {class: header.some(Boolean) ? null : 'facts'}), titleId = `table${section.children.length}`;
    table.setAttribute('aria-labelledby', titleId);
    if (header.some(Boolean)) table.append(make('thead', {}, make('tr', {}, ...header.map(name => make('th', {scope: 'col'}, name)))));
    table.append(make('tbody', {}, ...rows.map(row => make('tr', {},
      ...row.map((cell, column) => make('td', {'data-label': header[column], class: kind(cell, header[column])}, cell))))));
    section.append(make('section', {class: header.length > 4 ? 'wide' : null},
      make('h2', {id: titleId}, title), make('div', {class: 'scroll'}, table)));
  }
  return section;
};

Page.prototype.reportText = function (run) {
  const text = make('pre', {tabindex: '0'}, run.text);
  const button = make('button', {type: 'button', onclick: async () => {
    try { await navigator.clipboard.writeText(run.text); button.textContent = 'copied'; }
    catch { getSelection().selectAllChildren(text); button.textContent = 'selected: copy it'; }
  }}, 'copy');
  return [make('h2', {}, 'The report ', button), text];
};

window.forgatherMem = {show: (root, runs) => new Page(root, runs)};
const inside = document.getElementById('runs');
if (inside) window.forgatherMem.page = window.forgatherMem.show(document.getElementById('page'), JSON.parse(inside.textContent));
})();
