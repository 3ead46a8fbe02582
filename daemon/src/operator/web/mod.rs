//! The page that browsers of this host see: what `campanile ctl` shows as text, drawn, and nothing that changes anything.
//!
//! ```text
//!   browser ──GET /, page.js, page.css──▶ Site: files of this program
//!           ──GET *.json, once a second──▶ Site ── Handler ── orders: vGPUs' threads; each kind asked once in FRESH at the most
//! ```
//!
//! A page of another origin can neither read nor show any of it: the Host header has to be a name of this host (another
//! name may lead here, too), and the policy of the content lets the page load only itself. Text of guests reaches the page
//! as JSON, and the document as text nodes alone.

pub mod site;
