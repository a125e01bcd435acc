"""Pages around what notebooks show: none, JupyterLab's own rules, and rules that reach everything they can."""

from __future__ import annotations

NOTHING = ""

JUPYTERLAB = """
.jp-RenderedHTMLCommon p { text-align: left; margin-bottom: 1em; }
.jp-RenderedHTMLCommon pre, .jp-RenderedHTMLCommon code { border: 0; background-color: #eee; font-family: monospace; }
.jp-RenderedHTMLCommon ul:not(.list-inline), .jp-RenderedHTMLCommon ol:not(.list-inline) { padding-left: 2em; }
.jp-OutputArea-output dt { font-weight: bold; float: left; width: 20%; padding: 0; margin: 0; }
.jp-OutputArea-output dd { float: left; width: 80%; padding: 0; margin: 0; }
.jp-OutputArea-output.jp-RenderedHTMLCommon table { margin-left: 0; margin-right: 0; }
.jp-RenderedHTMLCommon table { border-collapse: collapse; border-spacing: 0; border: none; color: #333;
  font-size: 12px; table-layout: fixed; margin-left: auto; margin-bottom: 1em; margin-right: auto; }
.jp-RenderedHTMLCommon thead { border-bottom: 1px solid #bdbdbd; vertical-align: bottom; }
.jp-RenderedHTMLCommon td, .jp-RenderedHTMLCommon th, .jp-RenderedHTMLCommon tr { vertical-align: middle;
  padding: 0.5em; line-height: normal; white-space: normal; max-width: none; border: none; }
.jp-RenderedHTMLCommon tbody tr:nth-child(odd) { background: #fff; }
.jp-RenderedHTMLCommon tbody tr:nth-child(even) { background: #f5f5f5; }
.jp-RenderedHTMLCommon svg { max-width: 100%; height: auto; }
.jp-RenderedHTMLCommon a { text-decoration: none; }
.jp-RenderedHTMLCommon * + p { margin-top: 1em; }
.jp-RenderedHTMLCommon mark { background: yellow; }
"""
"""The rules of JupyterLab 4 and of the classic notebook for what an output may hold."""

HOSTILE = """
#site * { box-sizing: border-box; }
#site #main dt, #site #main dd { float: left; width: 20%; padding: 9px; }
#site #main div, #site #main p, #site #main span { margin: 7px; letter-spacing: 3px; float: right; }
#site #main table, #site #main td, #site #main th, #site #main tr { display: block; border: 3px solid red; }
#site #main table { table-layout: fixed; border-spacing: 9px; }
#site #main svg { height: 33px; max-width: 9px; }
#site #main svg, #site #main svg * { opacity: .3; stroke: lime; fill: lime; }
#site #main mark, #site #main data, #site #main b, #site #main i, #site #main bdi { font-size: 33px; color: red; }
#site #main summary, #site #main details, #site #main figure, #site #main figcaption { display: inline; }
#site #main span::before, #site #main td::after { content: "host"; }
#main { text-align: right; text-transform: uppercase; line-height: 4; text-indent: 3em; white-space: pre; }
"""

BOXES = """root => {
  const at = root.getBoundingClientRect();
  const looks = ['fontSize', 'fontWeight', 'textAlign', 'color', 'backgroundColor', 'borderTopWidth', 'opacity',
    'fill', 'stroke'];
  const seen = e => !['STYLE', 'title'].includes(e.tagName) && e.getClientRects().length;
  return [...root.querySelectorAll('*')].filter(seen).map(e => {
    const box = e.getBoundingClientRect(), style = getComputedStyle(e);
    const sizes = [box.left - at.left, box.top - at.top, box.width, box.height].map(n => Math.round(10 * n) / 10);
    return [e.tagName, e.getAttribute('class'), ...sizes, ...looks.map(name => style[name])].join(' ');
  });
}"""
"""Where everything in an element is, and how it looks."""


PART = "display: flow-root; float: none; margin: 0; clear: both"  # its floats stay in it


def hosted(html: str, styles: str) -> str:
    """A page with a title, a table and a list of its own around what a notebook shows."""
    own = "<h2>own</h2><p>text</p><table><tr><th>a</th><td>b</td></tr></table><dl><dt>c</dt><dd>d</dd></dl>"
    return (
        f"<!doctype html><meta charset='utf-8'><style>body {{ margin: 0; font: 15px serif; color: #222; }}"
        f"#main {{ width: 900px; }} {styles}</style><body id='site'><div id='main' "
        f"class='jp-RenderedHTMLCommon jp-OutputArea-output rendered_html'>"
        f"<div id='before' style='{PART}'>{own}</div>{html}<div id='after' style='{PART}'>{own}</div></div>"
    )
