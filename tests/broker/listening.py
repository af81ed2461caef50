"""A broker behind a TCP port of loopback: the parts of a server, put together by a test."""

from courser.broker.broker import Broker
from courser.handlers.dispatcher import Dispatcher
from courser.server.codecs import CodecChooser
from courser.transports.request_memory import RequestMemory
from courser.transports.session_loop import Services
from courser.transports.settings import ConnectionSettings, TcpSettings
from courser.transports.tcp import TcpListener


def listener_of(broker: Broker) -> TcpListener:
    """On a free port, with the usual settings. It is the caller's to start and to stop."""
    connections = ConnectionSettings()
    chooser = CodecChooser(connections, verify_frames=broker.settings.verify_frames, user_name=lambda _: None)
    services = Services(
        begin=Dispatcher(broker).begin,
        choose_codec=chooser.choose,
        reply_sent=broker.reply_sent,
        clock=broker.clock,
        settings=connections,
        memory=RequestMemory(connections.request_memory),
        slow_work=broker.pool,
    )
    return TcpListener(
        TcpSettings(port=0),
        services,
        open_session=broker.sessions.open,
        close_session=broker.sessions.close,
        connection_count_max=connections.connection_count_max,
    )
