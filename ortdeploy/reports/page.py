"""The frame of a self-contained page: one style, one short script, and no address that a browser would fetch."""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape

from ortdeploy.terminal_text import plain

_STYLE = """
:root { color-scheme: light dark; --ground: #f6f7f9; --card: #fff; --ink: #17202b; --soft: #5d6975; --line: #dde2e8;
  --c0: #2667b5; --c1: #d9822b; --c2: #2c8a5a; --c3: #8a4fb3; --c4: #b5405f; --c5: #5b7083; --good: #1f7a4a;
  --bad: #b42c2c; --warn: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --ground: #11161c; --card: #1a2129; --ink: #e7ecf2; --soft: #9aa7b5;
  --line: #313b46; --c0: #6ea8ec; --c1: #f0a65a; --c2: #5cc08d; --c3: #c08ce6; --c4: #ea7f9c; --c5: #93a7ba;
  --good: #62c793; --bad: #f08080; --warn: #e0b050; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); }
main > * { min-width: 0; } .wide { grid-column: 1 / -1; }
section, header { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: 1rem 1.2rem; }
h1 { font-size: 1.45rem; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 1rem; margin: 0 0 .8rem; }
h3 { font-size: .85rem; font-weight: normal; color: var(--soft); margin: 1.2rem 0 .5rem; } .found { margin-top: 1rem; }
p { margin: .3rem 0; } .soft { color: var(--soft); } .bad { color: var(--bad); } .good { color: var(--good); }
.state { display: inline-block; border: 1px solid currentColor; border-radius: 1rem; padding: 0 .7rem;
  font-size: .85rem; margin-left: .5rem; vertical-align: .2rem; }
.numbers { display: grid; grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); gap: .8rem 1.2rem;
  margin-top: 1rem; }
.numbers b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
.numbers span { color: var(--soft); font-size: .85rem; }
.plot { display: grid; grid-template-columns: auto 1fr; gap: .2rem .5rem; margin: 0; }
.plot .y { display: flex; flex-direction: column; justify-content: space-between; text-align: right; }
.plot .y, .plot .x, .key { color: var(--soft); font-size: .8rem; font-variant-numeric: tabular-nums; }
.plot .x { grid-column: 2; position: relative; height: 1.3rem; }
.plot .x span { position: absolute; transform: translateX(-50%); white-space: nowrap; }
.plot .x .start { transform: none; }
.plot .x .end { transform: translateX(-100%); }
.plot svg { width: 100%; height: 12rem; display: block; overflow: visible; border-left: 1px solid var(--line);
  border-bottom: 1px solid var(--line); }
.plot svg * { vector-effect: non-scaling-stroke; }
.grid { stroke: var(--line); } .line { fill: none; stroke-width: 2; } .area { opacity: .14; stroke: none; }
.mark { stroke: var(--soft); stroke-width: 1; }
.event { stroke: var(--warn); stroke-width: 1.5; stroke-dasharray: 4 3; }
.dash { stroke-dasharray: 6 4; } .hit { fill: transparent; } .hit:hover { fill: var(--soft); fill-opacity: .18; }
.key { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin-top: .6rem; padding: 0; list-style: none; }
.key i { display: inline-block; width: .8rem; height: .8rem; border-radius: .2rem; margin-right: .4rem;
  vertical-align: -.1rem; }
.shares { display: flex; height: 2rem; border-radius: .35rem; overflow: hidden; background: var(--line); }
.shares i { display: block; min-width: 1px; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; }
td, th { padding: .3rem .9rem .3rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line);
  overflow-wrap: break-word; }
th { color: var(--soft); font-weight: normal; white-space: nowrap; } .scroll { overflow: auto; max-height: 32rem; }
.scroll table { min-width: 44rem; } .facts td { overflow-wrap: anywhere; } .facts td:first-child { white-space: nowrap;
  color: var(--soft); overflow-wrap: normal; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; overflow-wrap: normal; }
input[type=search] { width: 100%; max-width: 24rem; font: inherit; padding: .35rem .6rem; margin-bottom: .6rem;
  color: inherit; background: var(--ground); border: 1px solid var(--line); border-radius: .4rem; }
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(16rem, 1fr)); gap: 1rem; }
.gallery figure { margin: 0; border: 1px solid var(--line); border-radius: .5rem; padding: .6rem; overflow: hidden; }
.gallery svg.picture { width: 100%; max-height: 14rem; display: block; background: var(--ground); }
.gallery svg.sound { width: 100%; height: 4rem; display: block; }
.gallery dl { display: grid; grid-template-columns: auto 1fr; gap: 0 .6rem; margin: .5rem 0 0; font-size: .85rem; }
.gallery dt { color: var(--soft); } .gallery dd { margin: 0; overflow-wrap: anywhere; }
.gallery figcaption { font-size: .85rem; overflow-wrap: anywhere; }
summary { cursor: pointer; } code { font-size: .85em; overflow-wrap: anywhere; }
.up { color: var(--good); } .down { color: var(--bad); }
@media (max-width: 40rem) { main { padding: .5rem; gap: .6rem; } section, header { padding: .8rem; } }
@media print { :root { color-scheme: light; --ground: #fff; --card: #fff; --ink: #000; --soft: #444; --line: #bbb;
  --c0: #2667b5; --c1: #d9822b; --c2: #2c8a5a; --c3: #8a4fb3; --c4: #b5405f; --c5: #5b7083; --bad: #b42c2c;
  --good: #1f7a4a; --warn: #8a5a00; }
  main { display: block; max-width: none; padding: 0; } section, header { break-inside: avoid; margin-bottom: 1rem; }
  .scroll { max-height: none; overflow: visible; } input[type=search] { display: none; }
  .found tbody tr:nth-child(n+41) { display: none; } tr { break-inside: avoid; }
  .found:has(tr:nth-child(41))::after { content: "The first 40 rows; the page itself has more."; color: var(--soft); }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""

_SCRIPT = """
for (const box of document.querySelectorAll("input[type=search]")) {
  const rows = [...box.parentElement.querySelectorAll("tbody tr")];
  const said = box.parentElement.querySelector("output");
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every(word => text.includes(word));
      shown += !row.hidden;
    }
    said.textContent = words.length ? `${shown} of ${rows.length}` : "";
  });
}
"""
_HASH = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
_POLICY = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{_HASH}'"


def page(title: str, sections: Iterable[str]) -> str:
    """Return the page. Its content security policy lets a browser run this one script, and fetch nothing."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(plain(title))}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>\n'
        f"<body><main>\n{plain(''.join(sections))}</main><script>{_SCRIPT}</script></body></html>\n"
    )


def section(title: str, content: str, *, wide: bool = False) -> str:
    """Return a card with a heading."""
    return f"<section{' class=wide' if wide else ''}><h2>{escape(title)}</h2>{content}</section>\n"


def soft(text: str) -> str:
    """Return a paragraph in the background."""
    return f'<p class="soft">{escape(text)}</p>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """Return a table of text; the columns in `numbers` are numbers."""
    kinds = dict.fromkeys(numbers, " class=n")
    titles = "".join(f"<th{kinds.get(at, '')}>{escape(cell)}</th>" for at, cell in enumerate(head))
    body = "".join(
        "<tr>" + "".join(f"<td{kinds.get(at, '')}>{escape(cell)}</td>" for at, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f"<table>{f'<thead><tr>{titles}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"


def searchable(name: str, content: str) -> str:
    """Return a table with a field that hides the rows that do not have all of its words."""
    field = f'<input type="search" placeholder="Search" aria-label="{escape(name)}"> <output class="soft"></output>'
    return f'<div class="found">{field}<div class="scroll">{content}</div></div>'


def numbers(found: Iterable[tuple[str, str]]) -> str:
    """Return large numbers, each with its name."""
    return (
        '<div class="numbers">'
        + "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in found)
        + "</div>"
    )
