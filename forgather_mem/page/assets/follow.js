// Chooses a run, loads its data and shows it: for `report --serve`, which tells of each change, and for TensorBoard's
// tab, which is asked again. Addresses are relative to the page's.
const ASK_AGAIN_MS = 30000, LIST_AGAIN_MS = 15000;

const element = (tag, attributes, ...children) => {
  const made = Object.assign(document.createElement(tag), attributes);
  made.append(...children);
  return made;
};

const loaded = made => new Promise((done, failed) => {  // a script or style sheet, when it is there
  made.addEventListener('load', done);
  made.addEventListener('error', () => failed(new Error(`${made.src || made.href} did not load`)));
  document.head.append(made);
});

class Follower {
  constructor(root) {
    Object.assign(this, {root, page: null, waiting: null, source: null, list: '', last: '', pressed: false, others: false});
    this.select = element('select', {ariaLabel: 'run to show'});
    this.select.addEventListener('change', () => this.open());
    this.said = element('span', {className: 'name', role: 'status'});
    const bar = element('div', {className: 'bar'}, this.said, this.select);
    bar.style.padding = '.6rem clamp(.8rem, 2vw, 2.5rem) 0';
    root.before(bar);
    addEventListener('pointerdown', () => { this.pressed = true; }, true);
    for (const kind of ['pointerup', 'pointercancel', 'blur']) addEventListener(kind, () => { this.pressed = false; this.put(); });
    for (const kind of ['selectionchange', 'visibilitychange']) document.addEventListener(kind, () => this.put());
  }

  async start() {
    await this.relist();
    setInterval(() => document.hidden || this.relist().catch(() => {}), LIST_AGAIN_MS);
    if (!this.live) setInterval(() => document.hidden || this.ask(), ASK_AGAIN_MS);
  }

  async relist() {
    const list = await (await fetch('runs')).text(), {live, runs} = JSON.parse(list), chosen = this.select.value;
    if (list === this.list) return;
    Object.assign(this, {list, live});
    this.select.replaceChildren(...runs.map(({id, name, about}) => element('option', {value: id}, about ? `${name}: ${about}` : name)));
    this.select.hidden = runs.length < 2;
    if (runs.some(({id}) => String(id) === chosen)) this.select.value = chosen;
    else if (runs.length) this.open();
    else this.said.textContent = 'no run has written memory tags yet';
  }

  open() {
    this.source?.close();
    Object.assign(this, {last: '', waiting: null, others: true});
    this.said.textContent = 'loading';
    if (!this.live) { this.ask(); return; }
    this.source = new EventSource(`events?run=${this.select.value}`);
    this.source.onmessage = event => this.take(event.data);
    this.source.onerror = () => { this.said.textContent = 'the server has ended or does not answer: this is what it sent last'; };
  }

  async ask() {
    const run = this.select.value;
    const answer = await fetch(`data?run=${encodeURIComponent(run)}`).catch(() => ({ok: false, status: 'no answer'}));
    if (run !== this.select.value) return;
    if (answer.ok) this.take(await answer.text());
    else this.said.textContent = `there is no data of this run (${answer.status})`;
  }

  take(text) {
    if (text === this.last) return;
    this.last = text;
    const data = JSON.parse(text);
    if (data.error) this.said.textContent = data.error;
    else { this.waiting = data; this.put(); }
  }

  put() {  // not while a plot is dragged or a text is selected: all is drawn anew
    const data = this.waiting;
    if (!data || this.pressed || document.hidden || (this.page && !getSelection().isCollapsed)) return;
    this.waiting = null;
    if (this.page) this.page.update([data], this.others);
    else this.page = window.forgatherMem.page = window.forgatherMem.show(this.root, [data]);
    this.others = false;
    this.said.textContent = !this.live ? '' : data.ended ? `ended: ${data.ended}` : 'running';
  }
}

export async function render() {
  const root = document.getElementById('page') || document.body.appendChild(element('main', {id: 'page'}));
  try {
    await Promise.all(['uPlot.min.css', 'page.css'].map(href => loaded(element('link', {rel: 'stylesheet', href}))));
    for (const src of ['uPlot.iife.min.js', 'page.js']) await loaded(element('script', {src}));
    await new Follower(root).start();
  } catch (error) { root.textContent = `The page did not load: ${error.message}`; }
}

if (document.querySelector('script[src="follow.js"]')) render();  // TensorBoard calls it by itself
