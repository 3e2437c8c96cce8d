"""The style sheet and script of a report page; the script lets readers read values off the curves."""

from __future__ import annotations

# Colours that colour-blind people can distinguish (Okabe and Ito, 2008), each in two shades for light and dark pages.
STYLE = """
:root { --ink: #1d2329; --soft: #5b6670; --page: #fff; --field: #f5f7f8; --edge: #dde2e6;
  --c1: #0072b2; --c2: #d55e00; --c3: #009e73; --c4: #b5739d; --c5: #c99700; --c6: #56b4e9; --c7: #7a7f85; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --soft: #9aa5ae; --page: #14181c; --field: #1c2227;
  --edge: #343c43; --c1: #4aa8e0; --c2: #f0803c; --c3: #2fc49a; --c4: #d9a0c4; --c5: #e6b83c; --c6: #2d6f94; } }
* { box-sizing: border-box }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.45 system-ui, sans-serif }
main { max-width: 62rem; margin: 0 auto; padding: 1.2rem 1rem 3rem }
h1 { font-size: 1.3rem; margin: 0 0 .8rem } h2 { font-size: 1rem; margin: 2rem 0 .5rem }
pre.text, .scroll { overflow-x: auto }
pre.text { background: var(--field); border: 1px solid var(--edge); border-radius: 6px; padding: .8rem 1rem;
  font: 13px/1.4 ui-monospace, Menlo, Consolas, monospace }
figure { margin: 2.6rem 0 0 } figcaption { margin-bottom: .9rem }
.legend { color: var(--soft); font-size: .87rem; display: flex; flex-wrap: wrap; gap: .1rem 1rem; margin-top: .2rem }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .4em; background: var(--c) }
.key.dashed { height: 0; border-top: 2px dashed var(--soft); border-radius: 0; vertical-align: .25em }
.plot { position: relative; height: 210px; margin: 0 .6rem 1.6rem 3.2rem }
.plot svg { position: absolute; width: 100%; height: 100%; overflow: visible }
.plot path { fill: none; vector-effect: non-scaling-stroke } .plot .grid { stroke: var(--edge) }
.plot .line { stroke: var(--c); stroke-width: 1.6px; stroke-linejoin: round; stroke-linecap: round }
.plot .area { fill: var(--c); opacity: .22 } .plot .limit { stroke: var(--soft); stroke-dasharray: 6 5 }
.plot .y, .plot .x { position: absolute; color: var(--soft); font-size: 12px; line-height: 1; white-space: nowrap }
.plot .y { right: 100%; margin-right: .5rem; transform: translateY(50%) }
.plot .x { top: 100%; margin-top: .45rem; transform: translateX(-50%) }
.plot .mark { position: absolute; top: -7px }
.mark { width: 0; height: 0; border: 5px solid transparent; border-top: 7px solid var(--c); border-bottom: 0;
  transform: translateX(-50%) }
.key.mark { width: 0; height: 0; background: none; border-radius: 0; transform: none }
.plot .at { position: absolute; top: 0; bottom: 0; border-left: 1px solid var(--soft); pointer-events: none }
.plot .said { position: absolute; top: 4px; background: var(--page); border: 1px solid var(--edge); border-radius: 4px;
  padding: .2rem .5rem; font-size: 12px; white-space: nowrap; pointer-events: none; z-index: 1 }
.bar { display: flex; height: 26px; border-radius: 4px; overflow: hidden } .bar i { background: var(--c) }
table { border-collapse: collapse; font-size: .87rem; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .25rem 1.2rem .25rem 0; border-bottom: 1px solid var(--edge); white-space: nowrap }
th { color: var(--soft); font-weight: 500 }
.c1 { --c: var(--c1) } .c2 { --c: var(--c2) } .c3 { --c: var(--c3) } .c4 { --c: var(--c4) } .c5 { --c: var(--c5) }
.c6 { --c: var(--c6) } .c7 { --c: var(--c7) }
""".strip()

SCRIPT = """
for (const plot of document.querySelectorAll('.plot')) {
  const data = JSON.parse(plot.dataset.plot);
  const at = document.createElement('div'), said = document.createElement('div');
  at.className = 'at'; said.className = 'said';
  const nearest = (points, step) => points.reduce((a, b) => Math.abs(b[0] - step) < Math.abs(a[0] - step) ? b : a);
  plot.addEventListener('pointermove', event => {
    const box = plot.getBoundingClientRect(), share = (event.clientX - box.left) / box.width;
    if (share < 0 || share > 1) return;
    const wanted = data.first + share * (data.last - data.first);
    const found = data.lines.map(line => [line.label, nearest(line.points, wanted)]);
    const step = found.map(entry => entry[1][0]).reduce((a, b) => Math.abs(b - wanted) < Math.abs(a - wanted) ? b : a);
    const left = 100 * (step - data.first) / (data.last - data.first);
    at.style.left = left + '%';
    said.style.left = left < 50 ? left + 1 + '%' : ''; said.style.right = left < 50 ? '' : 101 - left + '%';
    said.textContent = '';
    for (const text of [data.over + ' ' + step.toLocaleString('en'),
                        ...found.map(([label, point]) => label + ' ' + point[1] + ' ' + data.unit)]) {
      const line = document.createElement('div');
      line.textContent = text;
      said.append(line);
    }
    plot.append(at, said);
  });
  plot.addEventListener('pointerleave', () => { at.remove(); said.remove(); });
}
""".strip()
