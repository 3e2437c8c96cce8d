// Chooses a run, loads its data and shows it: for `report --serve`, which tells of each change, and for TensorBoard's
// tab, which is asked again. Addresses are relative to the page's.
const ASK_AGAIN_MS = 30000, LIST_AGAIN_MS = 15000;

function element(tag, attributes = {}, ...children) {
  const made = Object.assign(document.createElement(tag), attributes);
  made.append(...children);
  return made;
}

function loaded(made) {  // a script or style sheet, when it is there
  return new Promise((done, failed) => {
    made.addEventListener('load', done);
    made.addEventListener('error', () => failed(new Error(`${made.src || made.href} did not load`)));
    document.head.append(made);
  });
}

class Follower {
  constructor(root) {
    this.root = root;
    this.page = this.waiting = this.source = null;
    this.last = this.list = '';
    this.paused = this.pressed = false;
    this.select = element('select', {ariaLabel: 'run to show'});
    this.select.addEventListener('change', () => this.open());
    this.button = element('button', {type: 'button'}, 'pause');
    this.button.addEventListener('click', () => {
      this.paused = !this.paused;
      this.button.textContent = this.paused ? 'go on' : 'pause';
      this.put();
    });
    this.said = element('span', {className: 'name', role: 'status'});
    this.bar = element('div', {className: 'bar'}, this.said, this.select, this.button);
    this.bar.style.padding = '.6rem clamp(.8rem, 2vw, 2.5rem) 0';
    root.before(this.bar);
    addEventListener('pointerdown', () => { this.pressed = true; }, true);
    for (const kind of ['pointerup', 'pointercancel', 'blur']) addEventListener(kind, () => { this.pressed = false; this.put(); });
    document.addEventListener('selectionchange', () => this.put());
    document.addEventListener('visibilitychange', () => this.put());
  }

  async start() {
    const {live} = await this.relist();
    this.live = live;
    this.button.hidden = !live;
    if (this.select.options.length) this.open();
    else this.said.textContent = 'no run has written memory tags yet';
    setInterval(() => document.hidden || this.relist().catch(() => {}), LIST_AGAIN_MS);
    if (!live) setInterval(() => document.hidden || this.ask(), ASK_AGAIN_MS);
  }

  async relist() {
    const list = await (await fetch('runs')).text(), found = JSON.parse(list), chosen = this.select.value;
    if (list !== this.list) {
      this.select.replaceChildren(...found.runs.map(({id, name}) => element('option', {value: id}, name)));
      if (found.runs.some(({id}) => String(id) === chosen)) this.select.value = chosen;
      else if (this.list && found.runs.length) this.open();
      this.select.hidden = found.runs.length < 2;
    }
    this.list = list;
    return found;
  }

  open() {
    this.source?.close();
    this.last = '';
    this.said.textContent = 'loading';
    if (!this.live) { this.ask(); return; }
    this.source = new EventSource(`events?run=${this.select.value}`);
    this.source.onmessage = event => this.take(event.data);
    this.source.onerror = () => { this.said.textContent = 'the server has ended or does not answer: shown is what it sent last'; };
  }

  async ask() {
    if (!this.select.value) return;
    const run = this.select.value;
    try {
      const answer = await fetch(`data?run=${encodeURIComponent(run)}`), text = await answer.text();
      if (run === this.select.value && answer.ok) this.take(text);
      else if (!answer.ok) this.said.textContent = `there is no data of this run (${answer.status})`;
    } catch (error) { this.said.textContent = String(error.message); }
  }

  take(text) {
    const data = text === this.last ? null : JSON.parse(text);
    this.last = text;
    if (data?.error) this.said.textContent = data.error;
    else if (data) { this.waiting = data; this.put(); }
  }

  put() {  // not while a plot is dragged or a text is selected: all is drawn anew
    const data = this.waiting, selection = getSelection();
    if (!data || this.paused || this.pressed || document.hidden || (this.page && !selection.isCollapsed)) return;
    this.waiting = null;
    if (this.page) this.page.update([data]);
    else this.page = window.forgatherMem.page = window.forgatherMem.show(this.root, [data]);
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
