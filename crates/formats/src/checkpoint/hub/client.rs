//! HTTP client of a hub. The token is sent only to the hub's origin (scheme, host and port), so redirects are followed here and not by
//! the HTTP crate. Knows no files or caches.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use ureq::http::header::{ACCEPT_ENCODING, AUTHORIZATION, LOCATION, RANGE, RETRY_AFTER};
use ureq::http::{HeaderMap, HeaderValue, Response, StatusCode, Uri};
use ureq::{Agent, Body};

use super::set;
use crate::guard::read_text;
use crate::progress::say;

/// Seconds without a byte after which a download fails: Hugging Face's variable, and its default.
const TIMEOUT: (&str, u64) = ("HF_HUB_DOWNLOAD_TIMEOUT", 60);
/// A day: longer waits are not counted in by the system.
const LONGEST_TIMEOUT: u64 = 86_400;
const REDIRECTS: usize = 10;
/// Retries of a busy hub, and the longest wait in seconds that it may request.
const AGAIN: u32 = 4;
const LONGEST_WAIT: u64 = 300;

/// A hub and its credentials.
pub(super) struct Client {
    agent: Agent,
    /// Without a slash at the end.
    endpoint: String,
    origin: UrlOrigin,
    token: Option<HeaderValue>,
    seconds: u64,
}

/// An origin that may see the token.
#[derive(Debug, PartialEq, Eq)]
struct UrlOrigin {
    scheme: String,
    host: String,
    port: u16,
}

pub(super) struct HubResponse {
    /// Headers of the hub's own responses, in order. Another host, which may serve the bytes, cannot add to them.
    own: Vec<HeaderMap>,
    pub response: Response<Body>,
}

impl HubResponse {
    /// The hub's last value of a header: a redirect within the hub may have its own tag.
    pub fn hub_header(&self, name: &str) -> Option<&str> {
        self.own.iter().rev().find_map(|headers| headers.get(name)?.to_str().ok())
    }

    /// A header of the last answer, which has the bytes.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }
}

impl Client {
    /// The hub of HF_ENDPOINT, and the token of HF_TOKEN or of the file that `hf auth login` writes below `home`.
    pub fn from_env(home: &Path) -> Result<Self> {
        let (name, default) = TIMEOUT;
        let seconds = match set(name) {
            None => default,
            Some(text) => {
                let seconds = text.trim().parse().ok().filter(|seconds| (1..=LONGEST_TIMEOUT).contains(seconds));
                seconds.with_context(|| format!("{name}={text}: write seconds, from 1 to {LONGEST_TIMEOUT}"))?
            }
        };
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let uri = endpoint.parse::<Uri>().map_err(Error::from);
        let origin =
            uri.and_then(|uri| origin(&uri)).context("HF_ENDPOINT is not an address such as https://huggingface.co")?;
        let limit = Some(Duration::from_secs(seconds));
        let config =
            Agent::config_builder().max_redirects(0).max_redirects_will_error(false).http_status_as_error(false);
        let config = config.user_agent(concat!("switchyard/", env!("CARGO_PKG_VERSION")));
        let config = config.timeout_connect(limit).timeout_recv_response(limit).timeout_per_read(limit);
        Ok(Self { agent: config.build().into(), endpoint, origin, token: token(home)?, seconds })
    }

    /// Requests a path of the hub, optionally a range of its bytes.
    pub fn get(&self, path: &str, range: Option<&str>) -> Result<HubResponse> {
        let mut uri: Uri = format!("{}{path}", self.endpoint).parse().context("no address")?;
        let mut own = vec![];
        for _ in 0..=REDIRECTS {
            let to_hub = origin(&uri)? == self.origin;
            let response = self.ask(&uri, range, to_hub)?;
            if to_hub {
                own.push(response.headers().clone());
            }
            let status = response.status();
            if !status.is_redirection() {
                ensure!(status.is_success() || status == StatusCode::RANGE_NOT_SATISFIABLE, refusal(status, &uri));
                return Ok(HubResponse { own, response });
            }
            let to = response.headers().get(LOCATION).and_then(|to| to.to_str().ok());
            let to = to.context("the answer is not a hub's: a redirect without a target")?;
            let next = join(&uri, to)?;
            let clear = uri.scheme_str() == Some("https") && next.scheme_str() != Some("https");
            ensure!(!clear, "{} sends on to an address without encryption", host(&uri));
            uri = next;
        }
        bail!("{} sends on more than {REDIRECTS} times", host(&uri))
    }

    /// One request, repeated if the server is busy.
    fn ask(&self, uri: &Uri, range: Option<&str>, to_hub: bool) -> Result<Response<Body>> {
        for again in 0.. {
            let mut request = self.agent.get(uri.clone()).header(ACCEPT_ENCODING, "identity");
            if let Some(range) = range {
                request = request.header(RANGE, range);
            }
            if let (true, Some(token)) = (to_hub, &self.token) {
                request = request.header(AUTHORIZATION, token.clone());
            }
            let response = request.call().map_err(|error| self.describe(error).context(host(uri)))?;
            let busy = matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
            if !busy || again == AGAIN {
                return Ok(response);
            }
            let asked = response.headers().get(RETRY_AFTER).and_then(|wait| wait.to_str().ok()?.trim().parse().ok());
            let wait: u64 = asked.unwrap_or(1 << again);
            let status = response.status().as_u16();
            ensure!(wait <= LONGEST_WAIT, "{} is busy (HTTP {status}): try again in {wait} s", host(uri));
            say(&format!("{} is busy (HTTP {status}): next try in {wait} s", host(uri)));
            std::thread::sleep(Duration::from_secs(wait));
        }
        bail!("{} is busy", host(uri))
    }

    /// An error message without addresses: download addresses are temporary secrets.
    pub fn describe(&self, error: ureq::Error) -> Error {
        match error {
            ureq::Error::Timeout(_) => {
                anyhow!("no data from the server for {} s ({})", self.seconds, TIMEOUT.0)
            }
            ureq::Error::Io(error) => match error.downcast::<ureq::Error>() {
                Ok(inner) => self.describe(inner),
                Err(error) => error.into(),
            },
            ureq::Error::BadUri(_) => anyhow!("no address"),
            other => other.into(),
        }
    }
}

/// The message for a status that is not a success.
fn refusal(status: StatusCode, uri: &Uri) -> String {
    let why = match status.as_u16() {
        401 | 403 => ": not allowed; a gated or private model needs the token of someone who may read it in HF_TOKEN",
        404 => ": not there",
        _ => "",
    };
    format!("{} answers HTTP {}{why}", host(uri), status.as_u16())
}

fn host(uri: &Uri) -> String {
    uri.host().unwrap_or("the server").to_owned()
}

fn origin(uri: &Uri) -> Result<UrlOrigin> {
    let scheme = uri.scheme_str().unwrap_or_default().to_ascii_lowercase();
    let usual = match scheme.as_str() {
        "https" => 443,
        "http" => 80,
        _ => bail!("neither http:// nor https://"),
    };
    let authority = uri.authority().context("no host")?;
    ensure!(!authority.as_str().contains('@'), "the address contains a name or password");
    let host = authority.host().to_ascii_lowercase();
    ensure!(!host.is_empty(), "no host");
    Ok(UrlOrigin { scheme, host, port: authority.port_u16().unwrap_or(usual) })
}

/// The target of a redirect (RFC 9110, 10.2.2).
fn join(from: &Uri, to: &str) -> Result<Uri> {
    let scheme = from.scheme_str().unwrap_or("https");
    let authority = from.authority().map_or("", |authority| authority.as_str());
    let to = to.split('#').next().unwrap_or_default();
    let lower = to.to_ascii_lowercase();
    let whole = if lower.starts_with("http://") || lower.starts_with("https://") {
        to.to_owned()
    } else if to.starts_with("//") {
        format!("{scheme}:{to}")
    } else if to.starts_with('/') {
        format!("{scheme}://{authority}{to}")
    } else {
        let folder = from.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{scheme}://{authority}{folder}/{to}")
    };
    let uri = whole.parse::<Uri>().ok().filter(|uri| origin(uri).is_ok());
    uri.with_context(|| format!("{} redirects to something that is not an address", host(from)))
}

/// The token as a header; its text is in no error.
fn token(home: &Path) -> Result<Option<HeaderValue>> {
    let named = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"].into_iter().find_map(|name| Some((name.to_owned(), set(name)?)));
    let read = || {
        let file = set("HF_TOKEN_PATH").map_or_else(|| home.join("token"), Into::into);
        Some((file.display().to_string(), read_text(&file).ok()?))
    };
    let Some((place, text)) = named.or_else(read) else { return Ok(None) };
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let header = HeaderValue::from_str(&format!("Bearer {text}")).ok().filter(|_| !text.contains(char::is_whitespace));
    let mut header = header.with_context(|| format!("{place} has no token: a token is a word such as hf_abc"))?;
    header.set_sensitive(true);
    Ok(Some(header))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_scheme_host_and_port_together_are_the_same_place() {
        let at = |text: &str| origin(&text.parse().expect("a uri"));
        let hub = at("https://huggingface.co").expect("an origin");
        assert_eq!(at("https://HuggingFace.co:443/a").expect("an origin"), hub);
        for other in ["http://huggingface.co", "https://huggingface.co:444", "https://huggingface.co.evil.org"] {
            assert_ne!(at(other).expect("an origin"), hub, "{other}");
        }
        for none in ["/path", "ftp://huggingface.co", "https://hf@evil.org/", "https://huggingface.co@evil.org/"] {
            assert!(at(none).is_err(), "{none}");
        }
    }

    #[test]
    fn redirects_lead_where_the_standard_says() {
        let from: Uri = "https://hub.org/a/b/c?x=1".parse().expect("a uri");
        for (to, right) in [
            ("https://cdn.org/x?s=1#part", "https://cdn.org/x?s=1"),
            ("HTTPS://cdn.org/x", "https://cdn.org/x"),
            ("//cdn.org/x", "https://cdn.org/x"),
            ("/x/y", "https://hub.org/x/y"),
            ("d?y=2", "https://hub.org/a/b/d?y=2"),
        ] {
            assert_eq!(join(&from, to).expect(to).to_string(), right);
        }
        for none in ["https://", "//", "https://hub.org@evil.org/", "https:// a"] {
            assert!(join(&from, none).is_err(), "{none}");
        }
    }
}
