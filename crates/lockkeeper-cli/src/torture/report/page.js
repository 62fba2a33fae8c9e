'use strict';

// Text from a store is set as text, never as markup: `el` is the only way to create an element.
const $ = (id) => document.getElementById(id);
const el = (name, text = '', kind = '') => {
  const made = document.createElement(name);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
};
const report = JSON.parse($('data').textContent);
const rows = report.rows;
// With a row for each fault, only the last of an engine, or one with a violation, has a timeline.
const shown = rows.filter((row) => row.timeline);
const number = (n) => n.toLocaleString('en');
const percent = (n) => `< ${Math.min(n, 100).toFixed(n < 10 ? 2 : 0)} %`;
const millis = (n) => (n === null ? '' : `${number(n)} ms`);

const COLUMNS = [
  ['Engine', (row) => row.engine],
  ['Fault', (row) => row.fault],
  ['Cycles', (row) => number(row.cycles)],
  ['Faults', (row) => number(row.faults)],
  ['Lost unfenced', (row) => number(row.unfenced_losses)],
  ['Refused', (row) => number(row.refused)],
  ['Overlaps', (row) => number(row.overlaps)],
  ['Violations', (row) => number(row.violations)],
  ['Worst margin', (row) => millis(row.worst_margin_ms)],
  ['Median margin', (row) => millis(row.median_margin_ms)],
  ['Recovery', (row) => millis(row.recovery_ms)],
  ['Bound', (row) => (row.violations || !row.faults ? '' : percent(300 / row.faults))],
];

function verdict() {
  const sum = (name) => rows.reduce((all, row) => all + row[name], 0);
  const bad = sum('violations');
  $('verdict').textContent = bad ? `${number(bad)} violations` : 'No violation';
  $('verdict').className = bad ? 'bad' : 'good';
  $('summary').textContent = `${number(sum('cycles'))} cycles under ${number(sum('faults'))} faults`;
  const commit = report.commit ? `, commit ${report.commit}` : '';
  $('about').textContent = `lockkeeper ${report.version}${commit}, ${report.created}`;
  const head = document.querySelector('thead').appendChild(el('tr'));
  COLUMNS.forEach(([name]) => head.append(el('th', name)));
  for (const row of rows) {
    const line = $('rows').appendChild(el('tr'));
    for (const [name, cell] of COLUMNS) {
      const kind = name === 'Violations' ? (row.violations ? 'bad' : 'good') : '';
      line.append(el('td', cell(row), kind));
    }
    const command = $('commands').appendChild(el('li', `${row.engine}, ${row.fault}: `));
    command.append(el('code', row.repeat));
    for (const window of row.windows) {
      $('found').hidden = false;
      const events = window.events.map((event) => `${event.ms.toFixed(3).padStart(12)} ms  ${event.what}`);
      $('windows').append(el('pre', [`${row.engine}: ${window.violation}`, ...events].join('\n')));
    }
  }
}

// The timeline: a lane for each client with a row for each task, and one for the servers.
const canvas = $('timeline');
const ROW = 4;
const GAP = 14;
const LEFT = 70;
const AXIS = 18;
const view = { line: null, from: 0, to: 1 };
let pointer = null;

// Read once for each drawing: there may be thousands of bars.
let colors = {};
const color = (name) => {
  colors[name] ??= getComputedStyle(document.documentElement).getPropertyValue(`--${name}`);
  return colors[name];
};
const laneTop = (n) => AXIS + n * (view.line.tasks * ROW + GAP);
const x = (ms) => LEFT + ((ms - view.from) / (view.to - view.from)) * (canvas.clientWidth - LEFT);
const time = (px) => view.from + ((px - LEFT) / (canvas.clientWidth - LEFT)) * (view.to - view.from);

// Grants come without the names of their fields.
function named(line) {
  const grants = line.grants.map(([client, task, key, mode, shared, fence, called, returned, end, lost]) =>
    ({ client, task, key: line.keys[key], mode: line.modes[mode], shared, fence, called, returned, end, lost }));
  return { ...line, grants };
}

function select(n) {
  view.line = shown[n] ? named(shown[n].timeline) : null;
  $('jump').hidden = !view.line?.violations.length;
  everything();
}

function everything() {
  [view.from, view.to] = [0, Math.max(view.line?.length ?? 1, 1)];
  draw();
}

function zoom(factor, at = (view.from + view.to) / 2) {
  const span = Math.min(Math.max((view.to - view.from) * factor, 0.5), view.line?.length ?? 1);
  const share = (at - view.from) / (view.to - view.from);
  move(at - share * span, span);
}

function move(from, span = view.to - view.from) {
  const last = Math.max((view.line?.length ?? 1) - span, 0);
  view.from = Math.min(Math.max(from, 0), last);
  view.to = view.from + span;
  draw();
}

function jump() {
  const [from, to] = view.line.violations[0];
  const span = Math.max((to - from) * 1.5, 5);
  move((from + to - span) / 2, span);
}

function draw() {
  colors = {};
  const line = view.line;
  const scale = window.devicePixelRatio || 1;
  const height = line ? laneTop(line.clients + 1) : 60;
  canvas.style.height = `${height}px`;
  canvas.width = canvas.clientWidth * scale;
  canvas.height = height * scale;
  const pen = canvas.getContext('2d');
  pen.scale(scale, scale);
  pen.font = '11px system-ui, sans-serif';
  pen.fillStyle = color('soft');
  if (!line) {
    pen.fillText('Simulated systems have no timeline.', 12, 30);
    $('span').textContent = '';
    return;
  }
  const visible = (from, to) => to >= view.from && from <= view.to;
  const bar = (lane, row, rows, from, to, name) => {
    const left = Math.max(x(from), LEFT);
    pen.fillStyle = color(name);
    pen.fillRect(left, laneTop(lane) + row * ROW, Math.max(x(to) - left, 1), rows * ROW - 1);
  };
  for (const [from, to] of line.violations) {
    if (!visible(from, to)) continue;
    pen.fillStyle = color('bad');
    pen.globalAlpha = 0.35;
    pen.fillRect(x(from), 0, Math.max(x(to) - x(from), 2), height);
    pen.globalAlpha = 1;
  }
  for (const fault of line.faults) {
    if (visible(fault.from, fault.to)) bar(fault.lane, 0, line.tasks, fault.from, fault.to, 'fault');
  }
  for (const grant of line.grants) {
    if (!visible(grant.called, grant.end)) continue;
    bar(grant.client, grant.task, 1, grant.called, grant.returned, 'wait');
    bar(grant.client, grant.task, 1, grant.returned, grant.end, grant.shared ? 'shared' : 'hold');
    if (grant.lost !== null) bar(grant.client, grant.task, 1, grant.lost, grant.lost, 'lost');
  }
  for (const tick of line.refused) {
    if (visible(tick.at, tick.at)) bar(tick.client, 0, line.tasks, tick.at, tick.at, 'refused');
  }
  pen.fillStyle = color('panel');
  pen.fillRect(0, 0, LEFT - 2, height);
  pen.fillStyle = color('soft');
  for (let n = 0; n <= line.clients; n += 1) {
    pen.fillText(n < line.clients ? `client ${n}` : 'servers', 6, laneTop(n) + 12);
  }
  const step = 10 ** Math.floor(Math.log10(Math.max((view.to - view.from) / 4, 0.001)));
  for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) {
    if ((view.to - view.from) / step > 12 && Math.round(at / step) % 5) continue;
    pen.fillText(at >= 1000 ? `${(at / 1000).toFixed(step < 1000 ? 3 : 0)} s` : `${+at.toFixed(3)} ms`, x(at), 12);
  }
  const some = line.grants.length < line.all ? `; ${number(line.grants.length)} of ${number(line.all)} grants` : '';
  $('span').textContent = `${(view.to - view.from).toFixed(1)} ms of ${line.length.toFixed(0)} ms${some}`;
}

function describe(px, py) {
  const line = view.line;
  if (!line) return '';
  const at = time(px);
  const slack = ((view.to - view.from) / canvas.clientWidth) * 3;
  const lane = Math.floor((py - AXIS) / (line.tasks * ROW + GAP));
  const row = Math.floor((py - laneTop(lane)) / ROW);
  const near = (from, to) => at >= from - slack && at <= to + slack;
  const parts = [];
  for (const tick of line.refused) {
    if (tick.client === lane && near(tick.at, tick.at)) parts.push(`refused by the resource: ${tick.key}`);
  }
  for (const grant of line.grants) {
    if (grant.client !== lane || grant.task !== row || !near(grant.called, grant.end)) continue;
    const held = (grant.end - grant.returned).toFixed(1);
    const waited = (grant.returned - grant.called).toFixed(1);
    parts.push(`${grant.mode} ${grant.key}, fence ${grant.fence}, waited ${waited} ms, held ${held} ms${grant.lost === null ? '' : ', lost'}`);
  }
  for (const fault of line.faults) {
    if (fault.lane === lane && near(fault.from, fault.to)) parts.push(`fault: ${fault.name}`);
  }
  return parts.slice(0, 4).join(' · ');
}

canvas.addEventListener('wheel', (event) => {
  event.preventDefault();
  zoom(event.deltaY > 0 ? 1.25 : 0.8, time(event.offsetX));
}, { passive: false });
canvas.addEventListener('pointerdown', (event) => {
  pointer = { at: event.offsetX, from: view.from };
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener('pointerup', () => { pointer = null; });
canvas.addEventListener('pointermove', (event) => {
  if (pointer) {
    const width = canvas.clientWidth - LEFT;
    move(pointer.from - ((event.offsetX - pointer.at) / width) * (view.to - view.from));
  }
  $('hover').textContent = describe(event.offsetX, event.offsetY) || '\u00a0';
});
canvas.addEventListener('keydown', (event) => {
  const span = view.to - view.from;
  const keys = {
    '+': () => zoom(0.5),
    '-': () => zoom(2),
    ArrowLeft: () => move(view.from - span / 5),
    ArrowRight: () => move(view.from + span / 5),
  };
  if (keys[event.key]) {
    event.preventDefault();
    keys[event.key]();
  }
});
$('in').addEventListener('click', () => zoom(0.5));
$('out').addEventListener('click', () => zoom(2));
$('all').addEventListener('click', everything);
$('jump').addEventListener('click', jump);
$('engine').addEventListener('change', () => select($('engine').selectedIndex));
window.addEventListener('resize', draw);
window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);

verdict();
shown.forEach((row) => $('engine').append(el('option', `${row.engine}, ${row.fault}`)));
const worst = Math.max(shown.findIndex((row) => row.violations), 0);
$('engine').selectedIndex = worst;
select(worst);
