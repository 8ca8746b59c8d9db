"""The look of the report."""

STYLE = """
:root { color-scheme: light dark; --ink:#1e293b; --soft:#64748b; --card:#f1f5f9; --page:#fff;
  --accent:#2563eb }
@media (prefers-color-scheme: dark) { :root { --ink:#e2e8f0; --soft:#94a3b8; --card:#1e293b;
  --page:#0f172a; --accent:#60a5fa } }
* { box-sizing: border-box }
body { margin:0; background:var(--page); color:var(--ink);
  font:16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif }
main { max-width:1180px; margin:0 auto; padding:2rem 1.2rem 3rem }
h1 { font-size:1.9rem; line-height:1.2; margin:0 0 .6rem }
h2 { font-size:1.35rem; margin:2.4rem 0 .6rem }
h3 { font-size:1.02rem; margin:1.4rem 0 .5rem; color:var(--soft); font-weight:600 }
p { max-width:76ch } .lead { font-size:1.08rem }
.numbers { display:grid; grid-template-columns:repeat(auto-fit,minmax(200px,1fr)); gap:.8rem;
  margin:1.4rem 0 }
.numbers div { background:var(--card); border-radius:10px; padding:.9rem 1rem }
.numbers strong { display:block; font-size:1.5rem; color:var(--accent) }
.numbers span { font-size:.88rem; color:var(--soft) }
.grid { display:grid; grid-template-columns:repeat(auto-fill,minmax(250px,1fr)); gap:.7rem }
@media (min-width:1100px) { .grid { grid-template-columns:repeat(4,1fr) } }
figure { margin:0 } figure img { width:100%; display:block; border-radius:6px }
figcaption { font-size:.86rem; color:var(--soft); padding:.25rem .1rem }
figcaption b { color:var(--ink) }
.charts { display:grid; gap:1.2rem;
  grid-template-columns:repeat(auto-fit,minmax(min(440px,100%),1fr)) }
.chart { background:#fff; border:1px solid #e2e8f0; border-radius:10px; padding:.8rem 1rem;
  max-width:620px }
.chart svg { width:100%; height:auto } .chart p { font-size:.9rem; color:#475569; margin:.4rem 0 }
footer { margin-top:2.5rem; font-size:.85rem; color:var(--soft) }
"""
