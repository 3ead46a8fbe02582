//! TCP, with and without TLS.

use std::io::Write;
use std::net::TcpStream;

use campanile_daemon::migration::channel::address::Peer;
use campanile_daemon::migration::channel::connect::Door;
use campanile_daemon::migration::channel::tls::Identity;
use campanile_daemon::migration::settings::Settings;
use rcgen::BasicConstraints;
use rcgen::CertificateParams;
use rcgen::IsCa;
use rcgen::Issuer;
use rcgen::KeyPair;

use crate::pair::LONG;
use crate::pair::Source;
use crate::pair::Target;
use crate::pair::assert_same;
use crate::pair::settings;

pub(crate) struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// Of a host with this name, who believes `believed`.
    pub(crate) fn identity(&self, host: &str, believed: &Self) -> Identity {
        self.identity_of(&[host], believed)
    }

    /// Of a host with these names.
    pub(crate) fn identity_of(&self, names: &[&str], believed: &Self) -> Identity {
        let key = KeyPair::generate().unwrap();
        let names: Vec<_> = names.iter().map(ToString::to_string).collect();
        let params = CertificateParams::new(names).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        let pem = [certificate, key.serialize_pem(), believed.pem.clone()];
        let [certificate, key, authority] = pem.each_ref().map(String::as_bytes);
        Identity::from_pem(certificate, key, authority).unwrap()
    }
}

fn local(scheme: &str) -> Peer {
    format!("{scheme}:127.0.0.1:0").parse().unwrap()
}

#[test]
fn a_vgpu_moves_over_tcp_and_over_tls() {
    let authority = Authority::new();
    let identity = authority.identity("127.0.0.1", &authority);
    for (scheme, identity) in [("tcp", None), ("tls", Some(identity))] {
        let target = Target::on(&local(scheme), identity.as_ref(), LONG);
        let peer = target.peer();
        assert!(peer.to_string().starts_with(scheme));
        let source = Source::new(Settings { identity, streams: 3, ..settings(peer, LONG) });
        source.scribble();
        source.departure.start(None).unwrap();
        source.converge();
        source.memories[0].fill(5, 55);
        let bundle = source.departure.finish().unwrap();
        let (claim, staged) = target.claim(bundle);
        assert_same(&source.memories, &staged);
        claim.start().unwrap();
    }
}

#[test]
fn certificates_that_do_not_match_are_refused_by_either_side() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let good = ours.identity("127.0.0.1", &ours);
    let target = Target::on(&local("tls"), Some(&good), LONG);
    // One that nobody believes; one that believes nobody; one of another host; none.
    let strangers = [theirs.identity("127.0.0.1", &ours), ours.identity("127.0.0.1", &theirs)];
    for stranger in strangers {
        let source = Source::new(Settings { identity: Some(stranger), ..settings(target.peer(), LONG) });
        assert!(source.departure.finish().is_err());
    }
    let source = Source::new(settings(target.peer(), LONG));
    let error = source.departure.finish().unwrap_err().to_string();
    assert!(error.contains("--migrate-cert"), "{error}");
    assert!(Door::open(&local("tls"), None).is_err());
    let elsewhere = Target::on(&local("tls"), Some(&ours.identity("example.org", &ours)), LONG);
    let source = Source::new(Settings { identity: Some(good), ..settings(elsewhere.peer(), LONG) });
    let error = source.departure.finish().unwrap_err().to_string();
    assert!(error.contains("TLS"), "{error}");
    assert!(target.is_clean() && elsewhere.is_clean());
}

#[test]
fn who_does_not_speak_tls_gets_nowhere() {
    let authority = Authority::new();
    let target = Target::on(&local("tls"), Some(&authority.identity("127.0.0.1", &authority)), LONG);
    let Peer::Tls(address) = target.peer() else { panic!() };
    let mut plain = TcpStream::connect(address).unwrap();
    plain.write_all(&[0x55; 4096]).unwrap();
    let mut rest = Vec::new();
    let _reset = std::io::Read::read_to_end(&mut plain, &mut rest);
    assert!(target.is_clean());
    assert!(Identity::from_pem(b"", b"", b"").is_err());
}
