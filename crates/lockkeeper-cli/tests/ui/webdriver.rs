//! A browser, driven by the W3C WebDriver protocol: JSON over HTTP to chromedriver.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockkeeper_testkit::ports::free_port;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client;

const PATIENCE: Duration = Duration::from_secs(60);

/// The field that names an element in the protocol.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Chromium without a window.
pub(crate) struct Browser {
    driver: Child,
    address: SocketAddr,
    session: String,
    _profile: TempDir,
}

impl Browser {
    /// # Panics
    /// When there is no browser, with what to install.
    pub(crate) fn start() -> Self {
        let profile = tempfile::tempdir().unwrap();
        let port = free_port();
        let driver = Command::new("chromedriver")
            .arg(format!("--port={port}"))
            .env("HOME", profile.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("chromedriver: {error}; install chromium and chromium-driver (scripts/test command does)")
            });
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut browser = Self { driver, address, session: String::new(), _profile: profile };
        let started = Instant::now();
        while TcpStream::connect(address).is_err() {
            assert!(started.elapsed() < PATIENCE, "chromedriver does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        let flags = [
            "--headless=new".to_owned(),
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--disable-background-networking".to_owned(),
            "--force-device-scale-factor=1".to_owned(),
            format!("--user-data-dir={}", browser._profile.path().display()),
        ];
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"args": flags},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let answer = browser.call("POST", "/session", wanted);
        browser.session = answer["sessionId"].as_str().expect("a session").to_owned();
        browser.resize(1280, 800);
        browser
    }

    pub(crate) fn open(&self, url: &str) {
        self.post("/url", json!({"url": url}));
    }

    /// The size of what the page can use.
    pub(crate) fn resize(&self, width: u32, height: u32) {
        let metrics =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        let command = json!({"cmd": "Emulation.setDeviceMetricsOverride", "params": metrics});
        self.post("/goog/cdp/execute", command);
    }

    /// What a script returns.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", json!({"script": script, "args": []}))
    }

    /// Waits until a script returns something true.
    #[track_caller]
    pub(crate) fn until(&self, script: &str) -> Value {
        let started = Instant::now();
        loop {
            let value = self.run(script);
            if !matches!(value, Value::Null | Value::Bool(false)) {
                return value;
            }
            assert!(
                started.elapsed() < PATIENCE,
                "never: {script}\npage: {}\nlog: {}",
                self.run("return document.body.innerText"),
                self.log()
            );
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// Waits until an element that can be seen says something.
    #[track_caller]
    pub(crate) fn reads(&self, css: &str, text: &str) {
        self.until(&format!(
            "return [...document.querySelectorAll({})].some((e) => e.checkVisibility() && e.innerText.includes({}))",
            json!(css),
            json!(text)
        ));
    }

    /// Clicks as a user does, once the element is there.
    #[track_caller]
    pub(crate) fn click(&self, css: &str) {
        self.act(css, "click", &json!({}));
    }

    /// Types as a user does.
    #[track_caller]
    pub(crate) fn type_into(&self, css: &str, text: &str) {
        self.act(css, "value", &json!({"text": text}));
    }

    /// Presses a key, wherever the focus is.
    pub(crate) fn press(&self, key: &str) {
        let key = match key {
            "Enter" => "\u{E007}",
            "Escape" => "\u{E00C}",
            "ArrowDown" => "\u{E015}",
            "Tab" => "\u{E004}",
            key => key,
        };
        let strokes = json!([{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]);
        let keyboard = json!({"type": "key", "id": "keyboard", "actions": strokes});
        self.post("/actions", json!({"actions": [keyboard]}));
    }

    /// The accessible names of elements, as the browser computes them.
    pub(crate) fn labels(&self, css: &str) -> Vec<(String, String)> {
        let found = self.post("/elements", json!({"using": "css selector", "value": css}));
        let found = found.as_array().unwrap().clone();
        // One that was drawn anew meanwhile is left out.
        let name = |element: &Value| {
            let path = format!("/session/{}/element/{}", self.session, element[ELEMENT].as_str()?);
            let ask = |what: &str| self.try_call("GET", &format!("{path}/{what}"), &json!({})).ok();
            let (label, html) = (ask("computedlabel")?, ask("property/outerHTML")?);
            Some((label.as_str()?.to_owned(), html.as_str()?.to_owned()))
        };
        found.iter().filter_map(name).collect()
    }

    /// What the browser complained of.
    pub(crate) fn log(&self) -> Value {
        self.post("/se/log", json!({"type": "browser"}))
    }

    /// Sees the page in this theme.
    pub(crate) fn prefers(&self, scheme: &str) {
        let feature = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        let command = json!({"cmd": "Emulation.setEmulatedMedia", "params": {"features": feature}});
        self.post("/goog/cdp/execute", command);
    }

    /// Takes a picture, and keeps it if LOCKKEEPER_SCREENSHOTS names a directory.
    pub(crate) fn picture(&self, name: &str) {
        let picture = self.get("/screenshot");
        let text = picture.as_str().expect("a picture");
        if let Some(dir) = std::env::var_os("LOCKKEEPER_SCREENSHOTS") {
            let file = Path::new(&dir).join(format!("{name}.png"));
            std::fs::write(file, decode(text)).unwrap();
        }
    }

    #[track_caller]
    fn act(&self, css: &str, what: &str, argument: &Value) {
        let started = Instant::now();
        loop {
            let found = self.try_call(
                "POST",
                &format!("/session/{}/element", self.session),
                &json!({"using": "css selector", "value": css}),
            );
            // It may be drawn anew between the two calls.
            let done = found.and_then(|element| {
                let id = element[ELEMENT].as_str().expect("an element");
                let path = format!("/session/{}/element/{id}/{what}", self.session);
                self.try_call("POST", &path, argument)
            });
            match done {
                Ok(_) => return,
                Err(error) => assert!(
                    started.elapsed() < PATIENCE,
                    "cannot {what} {css}: {error}\npage: {}",
                    self.run("return document.body.innerText")
                ),
            }
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    fn get(&self, path: &str) -> Value {
        self.call("GET", &format!("/session/{}{path}", self.session), json!({}))
    }

    #[track_caller]
    fn post(&self, path: &str, body: Value) -> Value {
        self.call("POST", &format!("/session/{}{path}", self.session), body)
    }

    #[track_caller]
    fn call(&self, method: &str, path: &str, body: Value) -> Value {
        self.try_call(method, path, &body).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn try_call(&self, method: &str, path: &str, body: &Value) -> Result<Value, Value> {
        let body = if method == "GET" { String::new() } else { body.to_string() };
        let kind = [("Content-Type", "application/json")];
        let reply = client::request(self.address, method, path, &kind, &body);
        let value = reply.json()["value"].clone();
        if reply.status == 200 { Ok(value) } else { Err(value) }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Without this, chromium outlives its driver.
        let path = format!("/session/{}", self.session);
        if !self.session.is_empty() {
            let _ = self.try_call("DELETE", &path, &json!({}));
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// Base64, as pictures travel.
fn decode(text: &str) -> Vec<u8> {
    let value = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u8> = text.bytes().filter(|c| *c != b'=').map(value).collect();
    let group = |four: &[u8]| {
        let bits = four.iter().fold(0u32, |bits, digit| bits << 6 | u32::from(*digit));
        let bits = bits << (6 * (4 - four.len()));
        bits.to_be_bytes()[1..four.len()].to_vec()
    };
    digits.chunks(4).flat_map(group).collect()
}
