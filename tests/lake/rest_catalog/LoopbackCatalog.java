import java.net.InetSocketAddress;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;

/** Iceberg's own REST catalog, on loopback only. Arguments: the address of its database, and the warehouse. */
public class LoopbackCatalog {
  public static void main(String[] arguments) throws Exception {
    var catalog = CatalogUtil.buildIcebergCatalog(
        "tests",
        Map.of("catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog", "uri", arguments[0], "warehouse", arguments[1],
            "jdbc.schema-version", "V1"),
        new Configuration());
    var context = new ServletContextHandler();
    context.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
    var server = new Server(new InetSocketAddress("127.0.0.1", 0));
    server.setHandler(context);
    server.start();
    System.out.println(((ServerConnector) server.getConnectors()[0]).getLocalPort());
    // Until the test closes the pipe, or ends.
    System.in.read();
    server.stop();
    System.exit(0);
  }
}
