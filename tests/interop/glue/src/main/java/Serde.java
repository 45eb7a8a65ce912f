import com.amazonaws.services.schemaregistry.common.AWSDeserializerInput;
import com.amazonaws.services.schemaregistry.common.AWSSerializerInput;
import com.amazonaws.services.schemaregistry.common.configs.GlueSchemaRegistryConfiguration;
import com.amazonaws.services.schemaregistry.deserializers.GlueSchemaRegistryDeserializationFacade;
import com.amazonaws.services.schemaregistry.serializers.GlueSchemaRegistrySerializationFacade;
import com.amazonaws.services.schemaregistry.serializers.json.JsonDataWithSchema;
import java.nio.ByteBuffer;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import java.util.UUID;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.services.glue.model.DataFormat;

/**
 * AWS's own serializer and deserializer: `Serde ENDPOINT AVRO_SCHEMA JSON_SCHEMA [DATA ...]`. Prints what it has written, in
 * Base64: an Avro record and a JSON document, each plain and compressed. Then it prints what it reads of each DATA.
 */
public final class Serde {
    private static final StaticCredentialsProvider CREDENTIALS =
        StaticCredentialsProvider.create(AwsBasicCredentials.create("key", "secret"));

    public static void main(String[] arguments) {
        String endpoint = arguments[0];
        Schema avro = new Schema.Parser().parse(arguments[1]);
        GenericRecord order = new GenericData.Record(avro);
        order.put("id", 7L);
        order.put("item", "kettle \u2615");
        JsonDataWithSchema document =
            JsonDataWithSchema.builder(arguments[2], "{\"id\": 7, \"item\": \"kettle \u2615\"}").build();
        for (String compression : new String[] {"NONE", "ZLIB"}) {
            GlueSchemaRegistrySerializationFacade serializer = GlueSchemaRegistrySerializationFacade.builder()
                .credentialProvider(CREDENTIALS)
                .glueSchemaRegistryConfiguration(configuration(endpoint, compression))
                .build();
            write(serializer, DataFormat.AVRO, "orders", avro.toString(), order);
            write(serializer, DataFormat.JSON, "orders-json", arguments[2], document);
        }
        GlueSchemaRegistryDeserializationFacade deserializer =
            new GlueSchemaRegistryDeserializationFacade(configuration(endpoint, "NONE"), CREDENTIALS);
        for (int place = 3; place < arguments.length; place++) {
            ByteBuffer data = ByteBuffer.wrap(Base64.getDecoder().decode(arguments[place]));
            Object value = deserializer.deserialize(
                AWSDeserializerInput.builder().buffer(data).transportName("orders").build());
            String text = value instanceof JsonDataWithSchema
                ? ((JsonDataWithSchema) value).getPayload()
                : value.toString();
            System.out.println("read " + Base64.getEncoder().encodeToString(
                text.getBytes(java.nio.charset.StandardCharsets.UTF_8)));
        }
    }

    private static void write(
        GlueSchemaRegistrySerializationFacade serializer, DataFormat format, String name, String definition, Object value) {
        UUID id = serializer.getOrRegisterSchemaVersion(AWSSerializerInput.builder()
            .schemaDefinition(definition)
            .schemaName(name)
            .transportName("orders")
            .dataFormat(format.name())
            .build());
        System.out.println("wrote " + Base64.getEncoder().encodeToString(serializer.serialize(format, value, id)));
    }

    private static GlueSchemaRegistryConfiguration configuration(String endpoint, String compression) {
        Map<String, Object> values = new HashMap<>();
        values.put("region", "eu-west-1");
        values.put("endpoint", endpoint);
        values.put("registry.name", "default-registry");
        values.put("schemaAutoRegistrationEnabled", true);
        values.put("compression", compression);
        values.put("avroRecordType", "GENERIC_RECORD");
        return new GlueSchemaRegistryConfiguration(values);
    }
}
