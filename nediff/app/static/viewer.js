// Pictures that are zoomed and moved together. No library, nothing from outside.
// From Gradio: element, props (value is what viewer_value of page.py makes), trigger, watch.
const root = element.querySelector('.nv');
const panes = [...root.querySelectorAll('.nv-pane')];
const find = (name) => root.querySelector('.nv-' + name);
const button = (name) => root.querySelector(`[data-do="${name}"]`);
const view = { scale: 1, x: 0, y: 0, split: 0.5, sample: 0, region: false };
let shown = null, mark = null, timer = null;

const box = () => panes[0].getBoundingClientRect();
const fitScale = () => Math.min(box().width / shown.width, box().height / shown.height);

function bound() {
  const { width, height } = box(), least = fitScale();
  view.scale = Math.min(Math.max(view.scale, least), 64);
  const w = shown.width * view.scale, h = shown.height * view.scale;
  view.x = w <= width ? (width - w) / 2 : Math.min(0, Math.max(width - w, view.x));
  view.y = h <= height ? (height - h) / 2 : Math.min(0, Math.max(height - h, view.y));
}

function draw() {
  if (!shown || !box().width) return;
  bound();
  const zoomed = view.scale > fitScale() * 1.001, at = view.split * box().width;
  root.classList.toggle('nv-crisp', view.scale >= 2);
  for (const pane of panes) {
    pane.classList.toggle('nv-zoomed', zoomed);
    const layer = pane.querySelector('.nv-layer');
    layer.style.width = shown.width + 'px';
    layer.style.height = shown.height + 'px';
    layer.style.transform = `translate(${view.x}px, ${view.y}px) scale(${view.scale})`;
    drawMark(pane.querySelector('.nv-mark'));
  }
  const cut = Math.min(Math.max((at - view.x) / view.scale, 0), shown.width);
  find('restored').style.clipPath = `inset(0 0 0 ${cut}px)`;
  find('divider').style.left = at + 'px';
  view.whole = !zoomed;
  find('zoom').textContent = Math.round(view.scale * 100) + ' %';
}

function drawMark(frame) {
  frame.style.display = mark ? 'block' : 'none';
  if (!mark) return;
  const least = 9, w = mark.width * view.scale, h = mark.height * view.scale;
  const grow = Math.max(0, least - Math.min(w, h)) / 2;
  Object.assign(frame.style, {
    left: view.x + mark.left * view.scale - grow - 2 + 'px', top: view.y + mark.top * view.scale - grow - 2 + 'px',
    width: w + 2 * grow + 4 + 'px', height: h + 2 * grow + 4 + 'px',
  });
}

function zoom(factor, x = box().width / 2, y = box().height / 2) {
  const before = view.scale;
  view.scale *= factor;
  view.scale = Math.min(Math.max(view.scale, fitScale()), 64);
  view.x = x - (x - view.x) * view.scale / before;
  view.y = y - (y - view.y) * view.scale / before;
  draw();
}

function fit() { view.scale = fitScale(); view.x = view.y = 0; draw(); }

const pixel = (x, y) => ({
  left: Math.min(Math.max(Math.floor((x - view.x) / view.scale), 0), shown.width - 1),
  top: Math.min(Math.max(Math.floor((y - view.y) / view.scale), 0), shown.height - 1),
});

function ask(region) {
  mark = region;
  draw();
  trigger('probe', region);
}

function showSample(k) {
  const images = root.querySelectorAll('[data-pane="samples"] img');
  if (!images.length) return;
  view.sample = (k + images.length) % images.length;
  images.forEach((image, i) => image.classList.toggle('nv-off', i !== view.sample));
  find('sample').value = view.sample + 1;
  find('which').textContent = `Sample ${view.sample + 1} of ${images.length}`;
}

function play(on) {
  clearInterval(timer);
  timer = on ? setInterval(() => showSample(view.sample + 1), 280) : null;
  button('play').setAttribute('aria-pressed', String(on));
  button('play').textContent = on ? 'Pause' : 'Play';
}

// --- pointers: one moves (or draws a region), two zoom -----------------------------------------
for (const pane of panes) {
  const held = new Map();
  let moved = 0, start = null, spread = 0;
  const local = (event) => {
    const r = pane.getBoundingClientRect();
    return { x: event.clientX - r.left, y: event.clientY - r.top };
  };
  const drag = (a, b) => ({
    left: Math.min(a.left, b.left), top: Math.min(a.top, b.top),
    width: Math.abs(a.left - b.left) + 1, height: Math.abs(a.top - b.top) + 1,
  });
  pane.addEventListener('pointerdown', (event) => {
    if (!shown || event.target.closest('.nv-divider')) return;
    pane.setPointerCapture(event.pointerId);
    held.set(event.pointerId, local(event));
    moved = 0; spread = 0;
    start = (view.region || event.shiftKey) && held.size === 1 ? pixel(...Object.values(local(event))) : null;
    if (start) pane.style.touchAction = 'none';
  });
  pane.addEventListener('pointermove', (event) => {
    const before = held.get(event.pointerId);
    if (!before) return;
    const now = local(event);
    moved += Math.hypot(now.x - before.x, now.y - before.y);
    held.set(event.pointerId, now);
    if (held.size === 2) {
      const [a, b] = [...held.values()], apart = Math.hypot(a.x - b.x, a.y - b.y);
      if (spread) zoom(apart / spread, (a.x + b.x) / 2, (a.y + b.y) / 2);
      spread = apart; start = null;
    } else if (start) {
      mark = drag(start, pixel(now.x, now.y)); draw();
    } else if (moved > 4) {
      pane.classList.add('nv-moving');
      view.x += now.x - before.x; view.y += now.y - before.y; draw();
    }
  });
  const end = (event, asked) => {
    if (!held.delete(event.pointerId)) return;
    pane.classList.remove('nv-moving');
    if (held.size || !asked || spread) return;
    const { x, y } = local(event);
    if (start) ask(drag(start, pixel(x, y)));
    else if (moved <= 4) ask({ ...pixel(x, y), width: 1, height: 1 });
    start = null;
  };
  pane.addEventListener('pointerup', (event) => end(event, true));
  pane.addEventListener('pointercancel', (event) => end(event, false));
  pane.addEventListener('wheel', (event) => {
    if (!shown) return;
    event.preventDefault();
    const { x, y } = local(event);
    zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0018)), x, y);
  }, { passive: false });
  pane.addEventListener('keydown', (event) => {
    const step = 40, keys = {
      ArrowLeft: () => { view.x += step; draw(); }, ArrowRight: () => { view.x -= step; draw(); },
      ArrowUp: () => { view.y += step; draw(); }, ArrowDown: () => { view.y -= step; draw(); },
      '+': () => zoom(1.25), '=': () => zoom(1.25), '-': () => zoom(0.8), 0: fit, Home: fit,
      '[': () => showSample(view.sample - 1), ']': () => showSample(view.sample + 1),
      Enter: () => ask({ ...pixel(box().width / 2, box().height / 2), width: 1, height: 1 }),
      Escape: () => { mark = null; draw(); },
    };
    if (!shown || !keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
}

// --- before and after -------------------------------------------------------------------------
function split(share) {
  view.split = Math.min(Math.max(share, 0), 1);
  find('split').value = Math.round(100 * view.split);
  find('split').setAttribute('aria-valuetext', `${Math.round(100 * view.split)} % noisy, the rest restored`);
  draw();
}
find('split').addEventListener('input', (event) => split(event.target.value / 100));
find('divider').addEventListener('pointerdown', (event) => {
  event.stopPropagation();
  event.target.closest('.nv-divider').setPointerCapture(event.pointerId);
});
find('divider').addEventListener('pointermove', (event) => {
  if (event.buttons) split((event.clientX - box().left) / box().width);
});

// --- controls ---------------------------------------------------------------------------------
button('in').addEventListener('click', () => zoom(1.5));
button('out').addEventListener('click', () => zoom(1 / 1.5));
button('fit').addEventListener('click', fit);
button('pixels').addEventListener('click', () => zoom(1 / view.scale));
button('region').addEventListener('click', () => {
  view.region = !view.region;
  button('region').setAttribute('aria-pressed', String(view.region));
  panes.forEach((pane) => { pane.style.touchAction = view.region ? 'none' : ''; });
});
button('play').addEventListener('click', () => play(timer === null));
find('sample').addEventListener('input', (event) => { play(false); showSample(event.target.value - 1); });
// of the pictures alone, not of the map: dark ones with a few bright places show little otherwise
find('brightness').addEventListener('input', (event) => {
  root.style.setProperty('--nv-light', event.target.value);
  event.target.setAttribute('aria-valuetext', `${event.target.value} times as bright`);
});
find('opacity').addEventListener('input', (event) => { find('sd').style.opacity = event.target.value / 100; });
new ResizeObserver(() => { if (shown) { const whole = view.whole; draw(); if (whole) fit(); } }).observe(panes[0]);

// --- what to show -----------------------------------------------------------------------------
function put(image, url, alt) {
  image.hidden = !url;
  if (url) { image.src = url; image.alt = alt; } else image.removeAttribute('src');
}

function show() {
  const next = props.value;
  root.hidden = !next;
  if (!next) { shown = mark = null; play(false); return; }
  const other = !shown || shown.id !== next.id, whole = view.whole;
  const same = shown && shown.restored === next.restored && shown.sd === next.sd;
  shown = next;
  if (next.mark) mark = next.mark; // a region that was typed
  if (same && next.mark) { draw(); return; }
  const has = { restored: !!next.restored, samples: next.samples.length > 0, sd: !!next.sd };
  put(find('noisy'), next.noisy, `${next.name}, noisy`);
  put(find('restored'), next.restored, `${next.name}, restored`);
  put(find('under'), next.restored, `${next.name}, restored, under the map of uncertainty`);
  put(find('sd'), next.sd, `Uncertainty of ${next.name}: standard deviation of the samples, up to ${next.top}`);
  find('sd').style.opacity = find('opacity').value / 100;
  find('top').textContent = next.top;
  find('divider').hidden = !has.restored;
  find('divider').style.display = root.querySelector('.nv-tag-right').style.display = has.restored ? '' : 'none';
  find('split').closest('figcaption').hidden = !has.restored;
  find('split').closest('figcaption').style.display = has.restored ? '' : 'none';
  find('of-samples').hidden = !has.samples;
  find('of-sd').hidden = !has.sd;
  button('region').hidden = !has.sd;
  root.querySelectorAll('.nv-ask').forEach((words) => { words.hidden = !has.sd; });
  find('panes').classList.toggle('nv-one', !has.samples);
  const layer = root.querySelector('[data-pane="samples"] .nv-layer');
  layer.replaceChildren(...next.samples.map((url, k) => {
    const image = new Image();
    image.src = url; image.alt = `${next.name}, posterior sample ${k + 1}`;
    return image;
  }));
  find('sample').max = Math.max(1, next.samples.length);
  for (const pane of panes) {
    pane.style.aspectRatio = `${next.width} / ${next.height}`;
    const what = { compare: has.restored ? 'noisy and restored image' : 'noisy image', samples: 'posterior samples',
      sd: 'uncertainty over the restored image' }[pane.dataset.pane];
    pane.setAttribute('aria-label', `${next.name}: ${what}. Arrow keys move, plus and minus zoom, Enter probes the middle.`);
  }
  play(false);
  if (other && !next.mark) mark = null;
  requestAnimationFrame(() => { if (other || whole) fit(); split(view.split); showSample(0); });
}
watch('value', show);
show();
